# Needs Python >= 3.11, pip and make. `make demo` and `make test` are all that a new clone needs.
# ARGS= is passed on:  make test ARGS='-k embedded'   make demo ARGS='--seed 3'   make chaos CHAOS_SECONDS=20 SEED=7

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
NIGHTLY := .torchrl-nightly
BIN := $(VENV)/bin
ARGS ?=
CHAOS_SECONDS ?= 60
SEED ?=

.PHONY: help demo test slow nightly soak chaos lint types wheel bench clean $(VENV)
.DELETE_ON_ERROR:

help:
	@echo 'make demo | test | slow | nightly | soak | chaos | lint | types | wheel | bench | clean'

$(VENV): $(VENV)/.installed

# Debian's Python may come without ensurepip: then the pip that is there installs into the new environment.
$(VENV)/.installed: pyproject.toml constraints.txt
	@test -n '$(PYTHON)' || { echo 'redis-replay needs Python 3.11 or newer, and there is none on PATH'; exit 1; }
	@echo 'Setting up $(VENV): a few minutes the first time'
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || $(PYTHON) -m venv --without-pip $(VENV)
	@if $(BIN)/python -m pip --version >/dev/null 2>&1; then pip='$(BIN)/python -m pip'; \
	else pip='$(PYTHON) -m pip --python $(BIN)/python'; fi; \
	$$pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)
	@if [ -t 1 ]; then $(BIN)/redis-replay demo $(ARGS); else $(BIN)/redis-replay demo --headless $(ARGS); fi

# Three at a time, also on two cores: many tests wait for what takes time by its nature.
test: $(VENV)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m 'not slow' $(ARGS)

slow: $(VENV)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow $(ARGS)

# The nightly pair lies in a folder of its own, before the stable one on the path of the tests and of the processes they start.
$(NIGHTLY)/.installed: constraints-nightly.txt $(VENV)/.installed
	rm -rf $(NIGHTLY)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --target $(NIGHTLY) -r constraints-nightly.txt
	@touch $@

nightly: $(NIGHTLY)/.installed
	PYTHONPATH=$(CURDIR)/$(NIGHTLY) $(BIN)/python -m pytest -n 2 --dist worksteal tests/torchrl $(ARGS)

soak: $(VENV)
	REDIS_REPLAY_SOAK=2000000 $(BIN)/python -m pytest -n 2 -m slow tests/limits/test_soak.py $(ARGS)

chaos: $(VENV)
	$(BIN)/python -m tests.chaos --seconds $(CHAOS_SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

lint: $(VENV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/house/lint_lua.py

types: $(VENV)
	$(BIN)/mypy

wheel: $(VENV)
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist

bench: $(VENV)
	$(BIN)/redis-replay bench $(ARGS)

clean:
	rm -rf $(VENV) $(NIGHTLY) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
