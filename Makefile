# Two commands for a new user: `make quickstart` and `make test`. Both make the environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: quickstart test tests-of-parts tests-of-runs soak check setup format docs clean

quickstart: $(READY)  ## teach a small model to use tools, in minutes, on two CPU cores
	$(BIN)/agentrl train configs/quickstart.yaml

test: check  ## lint, types, import contracts, then every test but the longest
	$(MAKE) --no-print-directory -j2 tests-of-parts tests-of-runs

tests-of-parts: $(READY)
	$(BIN)/python -m pytest tests/unit tests/property tests/conformance

tests-of-runs: $(READY)  # which mostly wait for processes to start
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations=25 tests/integration

soak: $(READY)  ## the longest tests: runs that share a fleet, and processes killed again and again
	$(BIN)/python -m pytest -m soak

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: $(READY)

# The stamp is made last, so that an interrupted installation is taken up again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "agentrl needs Python 3.11 or newer, got $$($(PYTHON) --version); set PYTHON=..." >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## write docs/config.md anew from the configuration models
	$(BIN)/python -m agentrl.config.docs > docs/config.md

clean:
	rm -rf $(VENV) build *.egg-info
