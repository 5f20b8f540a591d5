# setup: the environment; demo: train two tasks as a Slurm job (WHERE=slurm, cluster or local chooses); test, check: CI.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SEED ?= 0
WHERE ?=
PROCESSES ?= 3
export OMP_NUM_THREADS := 1
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test check format clean

setup: $(STAMP)

$(STAMP): requirements-cpu.lock pyproject.toml scripts/setup.sh
	scripts/setup.sh $(VENV)
	touch $@

demo: $(STAMP)
	scripts/demo.sh $(BIN) $(SEED) $(WHERE)

test: $(STAMP)
	$(BIN)/pytest -q -n $(PROCESSES)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info
