# Everything here works from a fresh checkout: each target makes what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SGLANG_VENV := .sglang-venv
# The torch wheel may need an index of its own (CPU or CUDA build); see docs/install.md.
TORCH_ARGS ?=
# Two test processes: most tests wait for a process of their own, and share two cores well.
PYTEST_ARGS ?= -n 2 --dist loadfile

# All torch processes together stay within the cores and wait without spinning.
export OMP_WAIT_POLICY := PASSIVE

.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F':.*## ' '/^[a-z.%-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.ready: constraints.txt pyproject.toml scripts/setup.sh
	@PYTHON="$(PYTHON)" TORCH_ARGS="$(TORCH_ARGS)" bash scripts/setup.sh "$(VENV)"
	@touch $@

.venv: $(VENV)/.ready ## Make the environment from constraints.txt

demo: $(VENV)/.ready ## The main job end to end on a small real model (minutes on two cores)
	@$(BIN)/eagled demo

test: $(VENV)/.ready ## All tests, fast ones first, a file at a time on each core
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.ready ## Lint, types and all tests, as CI does
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.ready ## Format and lint, mending what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

faults: $(VENV)/.ready ## Which known faults have a passing test
	@$(BIN)/python -m pytest -q -m fault --faults-report=.cache/faults.json
	@$(BIN)/python -m tests.faults_report .cache/faults.json

sglang-env: ## Real SGLang for a machine without GPU, in its own environment (about 7 GB)
	@PYTHON="$(PYTHON)" bash scripts/sglang_env.sh "$(SGLANG_VENV)"

test-sglang: $(VENV)/.ready sglang-env ## Protocol contract and capture against real SGLang on the CPU
	@EAGLED_SGLANG_VENV="$(abspath $(SGLANG_VENV))" $(BIN)/python -m pytest tests/contract tests/sglang

.oracle-venv/.ready: requirements-oracle.txt $(VENV)/.ready
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps --upgrade --target .oracle-venv -r $<
	@touch $@

oracle: .oracle-venv/.ready ## An independent EAGLE-3 trainer that ours is compared with (33 MB)

.peers-venv/.ready: requirements-peers.txt $(VENV)/.ready
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps --upgrade --target .peers-venv -r $<
	@touch $@

peers-env: .peers-venv/.ready ## Other trainers' own readers, which check our exports (37 MB)

tokenizers: ## Real tokenizers for tests (84 MB, into ~/.cache/eagled/tokenizers)
	@bash scripts/fetch_tokenizers.sh

crash: $(VENV)/.ready ## 300 SIGKILLs and 100 power cuts (about half an hour); see docs/benchmarks.md
	@$(BIN)/python -m bench.crash --kills 300 --cuts 100

docs: $(VENV)/.ready ## Generated pages and pictures, anew
	@$(BIN)/python -m eagled.config_template
	@$(BIN)/python -m eagled.commands.reference
	@$(BIN)/python -m eagled.metrics > docs/metrics.md
	@$(BIN)/python -m eagled.tui.screenshot --docs docs/images

clean: ## Remove environments and caches, never a state directory
	rm -rf $(VENV) $(SGLANG_VENV) .oracle-venv .peers-venv .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: help .venv demo test check lint faults docs sglang-env test-sglang oracle peers-env tokenizers crash clean
