# The menu: `make` alone prints it. Each target does all of its own set-up (tools/prepare).

SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

RUN := .venv/bin/python
CODE := src tests tools examples $(wildcard bench)
TYPED := src tools examples $(wildcard bench)

SEEDS ?= 1000
FIRST ?= 0
# Two more than there are cores: tests that wait for an election, or for Spark, leave them idle.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
ARGS ?=
export PYTHON
export PYTHONUTF8 := 1

.PHONY: help
help: ## print this menu
	@echo "Talweg: make TARGET, where TARGET is"
	@sed -nE 's/^([a-z]+):[^#]*## (.*)$$/\1\t\2/p' Makefile | while IFS=$$'\t' read -r name text; do \
		printf '  %-10s %s\n' "$$name" "$$text"; done
	@echo "PYTHON=python3.12 chooses the interpreter of .venv when it is made."

.PHONY: demo
demo: java ## the whole story: a cluster, producers and consumers, pipelines on Spark, a report; ends by itself
	@$(RUN) tools/demo.py

.PHONY: up
up: environment ## a cluster on this machine, until Ctrl-C (ARGS=... goes to talweg up)
	@$(RUN) -m talweg.cli up $(ARGS)

.PHONY: test
test: servers check ## the checks, then all tests in parallel (WORKERS=n; ARGS=... goes to pytest)
	@if $(RUN) -m pytest --numprocesses=$(WORKERS) --maxprocesses=8 --dist=loadgroup $(ARGS); \
		then echo "make test: passed"; else echo "make test: FAILED"; exit 1; fi

.PHONY: check
check: environment ## ruff (rules and formatting) and mypy (strict)
	@$(RUN) -m ruff check --quiet $(CODE)
	@$(RUN) -m ruff format --check --quiet $(CODE) >/dev/null || { echo "make format would rewrite:"; \
		$(RUN) -m ruff format --diff --quiet $(CODE) 2>/dev/null | sed -n 's/^+++ /  /p'; exit 1; }
	@$(RUN) -m mypy --no-error-summary $(TYPED)
	@echo "make check: passed"

.PHONY: simulate
simulate: environment ## whole clusters on virtual time: SEEDS=n of them, from seed FIRST=s on, on all cores
	@$(RUN) -m talweg.testing.simulate --seeds $(SEEDS) --first $(FIRST) $(ARGS)

.PHONY: chaos
chaos: environment ## a million messages while servers die at random (ARGS="--messages n --seconds s --seed n")
	@$(RUN) -m talweg.testing.chaos $(ARGS)

.PHONY: bench
bench: ## measure, print the table, write it to docs/benchmarks.md
	@tools/prepare --extras dev,bench --try-java
	@$(RUN) -m bench $(ARGS)

.PHONY: format
format: environment ## rewrite the code in the house's format
	@$(RUN) -m ruff check --quiet --fix-only $(CODE); $(RUN) -m ruff format --quiet $(CODE)

.PHONY: reference
reference: environment ## write docs/reference.md and docs/settings.md from the code
	@$(RUN) tools/reference.py
	@$(RUN) tools/settings.py

.PHONY: pins
pins: environment ## resolve the dependencies anew and write constraints.txt
	@$(RUN) tools/pin.py

.PHONY: clean
clean: ## remove .venv and everything that tools left behind
	@rm -rf .venv .prepare.log build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: environment
environment:
	@tools/prepare

.PHONY: java
java:
	@tools/prepare --java

.PHONY: servers
servers:
	@tools/prepare --servers
