# Each target works in a fresh clone and installs only what it needs. Python 3.11 (or newer) and make are required.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
LOWEST := .venv-lowest
NEWEST := .venv-newest
NEXT := .venv-next
# The newest torch with a build without CUDA, for NEWEST and NEXT: `make test-newest TORCH=2.15.0` takes another.
TORCH ?= 2.13.0
CLASSROOM := outputs/classroom
# Three workers keep two cores busy, because some slow tests wait for processes.
WORKERS ?= 3
# Most installed modules are never imported; the others are compiled at their first import. A variable of some containers
# would compile all of them again in each process, which takes 20 seconds.
unexport PYTHONDONTWRITEBYTECODE
QUIET := --quiet --no-compile --disable-pip-version-check
# Files stay together, for their fixtures, and in the order of tests/conftest.py.
PYTEST = -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder
SELECTED ?= -m "not long"

# Pairs of transformers and torch for `make test-matrix`.
MATRIX ?= 5.17.0:2.11.0 5.17.0:2.13.0 5.19.0:2.12.1 5.21.1:2.13.0 5.23.0:2.13.0 5.24.0:2.13.0 5.24.0:2.14.1 5.24.0:2.15.0

# The highest instructions of an older CPU, for ATen, oneDNN, FBGEMM (which has nothing below AVX2), MKL and CTranslate2.
AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 FBGEMM_ENABLE_INSTRUCTIONS=AVX2 CT2_FORCE_CPU_ISA=AVX2
GENERIC := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 FBGEMM_ENABLE_INSTRUCTIONS=AVX2 MKL_CBWR=COMPATIBLE \
	CT2_FORCE_CPU_ISA=GENERIC
# int8, bfloat16, attention, dropout, losses and exports. ONNX Runtime has no such setting.
KERNEL_TESTS := tests/test_quantization.py tests/test_ops.py tests/test_fast_decoder.py tests/test_torchao.py \
	tests/test_rules.py tests/test_flash_attention.py tests/training/methods/test_loss.py \
	tests/training/test_trainer.py tests/extras/export/test_ctranslate2.py

.DEFAULT_GOAL := help
.PHONY: help demo test pytest test-all test-fast test-device test-kernels test-mutants test-lowest test-newest test-next test-matrix coverage lint format notebooks lab classroom docs site clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

demo: $(VENV)/.demo ## train a translation model from scratch in about a minute, after the installation
	$(VENV)/bin/python examples/quickstart.py

test: $(VENV)/.ready ## linters and tests, as in CI
	$(MAKE) --jobs=2 lint pytest

pytest: $(VENV)/.ready
	$(VENV)/bin/python $(PYTEST) $(SELECTED)
	$(MAKE) test-device

test-all: $(VENV)/.ready ## all tests, as every night: also long ones
	$(MAKE) --jobs=2 lint pytest SELECTED=

# One process per kind of device: it must be installed before torch is imported.
test-device: $(VENV)/.ready ## tests on a simulated GPU, compiled at the first call (requires g++)
	SIMULATED_DEVICE=cuda $(VENV)/bin/python -m pytest tests/device $(SELECTED)
	SIMULATED_DEVICE=private $(VENV)/bin/python -m pytest tests/device $(SELECTED)

test-fast: WORKERS = 2
test-fast: $(VENV)/.ready ## tests that are not slow, without export engines and transformers' common tests
	$(VENV)/bin/python $(PYTEST) -m "not slow and not long" --ignore tests/extras/export --ignore tests/conformance

test-kernels: $(VENV)/.ready ## tests of CPU kernels that are not slow, with the instructions of older CPUs
	$(AVX2) $(VENV)/bin/python $(PYTEST) -m "not slow and not long" $(KERNEL_TESTS)
	$(GENERIC) $(VENV)/bin/python $(PYTEST) -m "not slow and not long" $(KERNEL_TESTS)

test-mutants: $(VENV)/.ready ## damaged model folders, and damaged files of other tools
	ALL_MUTANTS=1 $(VENV)/bin/python -m pytest tests/robustness/test_mutants.py tests/robustness/test_damaged_checkpoints.py

test-lowest: $(LOWEST)/.ready ## all tests with the oldest supported transformers
	$(LOWEST)/bin/python $(PYTEST)

test-newest: $(NEWEST)/.ready ## all tests with the newest releases within the ranges of pyproject.toml
	$(NEWEST)/bin/python $(PYTEST)

test-next: $(NEXT)/.ready ## fast tests with the newest releases, also beyond the ranges of pyproject.toml
	$(NEXT)/bin/python -m pip install $(QUIET) --upgrade transformers tokenizers huggingface_hub accelerate datasets peft
	$(NEXT)/bin/python $(PYTEST) -m "not slow and not long"

test-matrix: ## conformance and generation tests with several versions; updates docs/compatibility.md
	$(PYTHON) .ci/test_matrix.py $(MATRIX)

coverage: $(VENV)/.ready ## line and branch coverage of the package, as HTML in outputs/coverage
	$(VENV)/bin/python $(PYTEST) -m "not slow and not long" --cov --cov-report=term --cov-report=html:outputs/coverage

lint: $(VENV)/.ready ## ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/.ready ## fix what ruff can fix
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

notebooks: $(VENV)/.ready ## execute the notebooks of examples/notebooks and store their outputs
	$(VENV)/bin/python examples/notebooks/execute.py

lab: $(VENV)/.lab ## open the notebooks in JupyterLab
	$(VENV)/bin/jupyter lab examples/notebooks

classroom: $(VENV)/.docs ## a folder for lessons without internet, for this kind of computer and version of Python
	mkdir -p $(CLASSROOM)/wheels
	git archive HEAD | tar --extract --directory $(CLASSROOM)
	$(VENV)/bin/python -m pip wheel --quiet --constraint $(VENV)/constraints.txt --wheel-dir $(CLASSROOM)/wheels '.[notebooks]' jupyterlab
	$(VENV)/bin/python examples/quickstart.py --output_dir $(CLASSROOM)/outputs/quickstart
	$(VENV)/bin/mkdocs build --strict --site-dir $(CLASSROOM)/site

docs: $(VENV)/.docs ## build the documentation site in outputs/site; warnings are errors
	$(VENV)/bin/mkdocs build --strict

site: $(VENV)/.site ## documentation, web translator and explorer as a static site in outputs/site (requires npm)
	test -f outputs/quickstart/README.md || $(VENV)/bin/python examples/quickstart.py
	$(VENV)/bin/python examples/build_site.py outputs/quickstart

clean: ## delete environments, caches and outputs
	rm -rf $(VENV) $(LOWEST) $(NEWEST) $(NEXT) .venv-[0-9]* .cache .coverage outputs

# Torch is installed first, by its pin: otherwise pip may select a build with several gigabytes of CUDA packages.
# transformers 5.17 requires huggingface_hub 1. `make test-newest` keeps the names of constraints.txt without versions,
# except for that of torch.
$(LOWEST)/%: REPIN := s/^transformers==.*/transformers==5.17.0/; s/^huggingface_hub==.*/huggingface_hub==1.33.0/
$(NEWEST)/% $(NEXT)/%: REPIN := s/^torch==.*/torch==$(TORCH)/; /^torch==/!s/==.*//
%/.demo: constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is required, this is " + sys.version'
	$(PYTHON) -m venv $*
	sed '$(REPIN)' constraints.txt > $*/constraints.txt
	$*/bin/python -m pip install $(QUIET) "$$(grep -E '^torch(==|$$)' $*/constraints.txt)"
	$*/bin/python -m pip install $(QUIET) --constraint $*/constraints.txt hatchling editables
	$*/bin/python -m pip install $(QUIET) --constraint $*/constraints.txt --no-build-isolation --editable '.[train,explore]'
	touch $@

%/.ready: %/.demo
	$*/bin/python -m pip install $(QUIET) --constraint $*/constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

%/.docs: %/.demo
	$*/bin/python -m pip install $(QUIET) --constraint $*/constraints.txt --no-build-isolation --editable '.[docs]'
	touch $@

# In the folder of `make classroom`, everything is installed from its wheels.
%/.lab:
	$(PYTHON) -m venv $*
	$*/bin/python -m pip install $(QUIET) $(if $(wildcard wheels),--no-index --find-links wheels \
		'random-transformer[notebooks]',--constraint constraints.txt --editable '.[notebooks]') jupyterlab
	touch $@

%/.site: %/.docs
	$*/bin/python -m pip install $(QUIET) --constraint $*/constraints.txt --no-build-isolation --editable '.[site]'
	touch $@

.PRECIOUS: %/.demo %/.ready %/.docs %/.lab %/.site
