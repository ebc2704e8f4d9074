"""The chaos run: writers and consuming learners at work while everything around them fails. `make chaos`.

Each process keeps a ledger of its own (`_ledger`), of what it was about to do and what it was told. The faults (`_faults`)
come from one seeded generator. At the end `_judge` says from the ledgers alone whether a promise was broken; `_crash` counts
what a server's crash loses under each way of keeping data.
"""
