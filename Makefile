# `make demo` trains a translator from scratch, `make test` runs every check and test, `make test-fast` the quick tests.
# Each sets itself up from a fresh clone and installs only what it needs; Python 3.11 (or newer) and make are required.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
LOWEST := .venv-lowest
WORKERS ?= 2
# Modules are compiled when they are first imported: of most that are installed, none ever is.
QUIET := --quiet --no-compile --disable-pip-version-check
# Files stay together, for their fixtures, and in the order of tests/conftest.py: those with slow tests first.
PYTEST := -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder

.PHONY: demo test test-fast test-lowest lint format clean

demo: $(VENV)/.demo
	$(VENV)/bin/python examples/quickstart.py

# The engines bring thread pools of their own, which a process that forks must not have: their tests run by themselves.
test: $(VENV)/.ready lint
	$(VENV)/bin/python $(PYTEST) --ignore tests/export
	$(VENV)/bin/python $(PYTEST) tests/export

# The inner loop: without the slow tests, the export engines and transformers' common tests.
test-fast: $(VENV)/.ready
	$(VENV)/bin/python $(PYTEST) -m "not slow" --ignore tests/export --ignore tests/conformance

test-lowest: $(LOWEST)/.ready
	$(LOWEST)/bin/python $(PYTEST) --ignore tests/export
	$(LOWEST)/bin/python $(PYTEST) tests/export

lint: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/.ready
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) $(LOWEST) .cache outputs

# Torch first, by exact pin: what depends on it would otherwise fetch a build with gigabytes of CUDA packages.
# `make test-lowest` differs in two pins: transformers, and huggingface_hub, of which it wants the first major version.
$(LOWEST)/%: REPIN := s/^transformers==.*/transformers==5.17.0/; s/^huggingface_hub==.*/huggingface_hub==1.33.0/
%/.demo: constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed, this is " + sys.version'
	$(PYTHON) -m venv $*
	sed '$(REPIN)' constraints.txt > $*/constraints.txt
	$*/bin/python -m pip install $(QUIET) "$$(grep '^torch==' $*/constraints.txt)"
	$*/bin/python -m pip install $(QUIET) --constraint $*/constraints.txt hatchling editables
	$*/bin/python -m pip install $(QUIET) --constraint $*/constraints.txt --no-build-isolation --editable '.[train]'
	touch $@

%/.ready: %/.demo
	$*/bin/python -m pip install $(QUIET) --constraint $*/constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

.PRECIOUS: %/.demo %/.ready
