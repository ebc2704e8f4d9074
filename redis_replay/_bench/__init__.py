"""Figures of a buffer, measured and written as the scripts for other replay stores do, so that rows lie side by side.

frame      one way to time: spawned workers, a warm-up, a barrier before each round
target     the buffer under test, and what one step of a writer and of a reader is
workloads  what happens in each workload, and which figures it gives
run        the command: one JSON object for each workload and size
report     several files of such objects as one Markdown table
"""
