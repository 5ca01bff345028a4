# Two commands on a fresh machine: `make demo` and `make test`. Each installs what it needs and is missing: into the
# environment that is active, or else into .venv.
VENV   := $(or $(VIRTUAL_ENV),.venv)
PYTHON ?= python3
PY     := $(VENV)/bin/python
READY  := $(VENV)/.installed
DEMO   := $(VENV)/.installed-demo

# Install the package with extras, by the environment's pip or by the one outside it.
install = if $(PY) -m pip --version >/dev/null 2>&1; then $(PY) -m pip install --quiet -e '$(1)'; \
	else $(PYTHON) -m pip --python $(PY) install --quiet -e '$(1)'; fi

.PHONY: demo check test test-oldest lint types wheel benchmark docs docs-serve clean help

help:            ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 14

demo: $(DEMO)    ## what does a network not know? Figure, TensorBoard curves and samples of SGD and samplers (two minutes)
	$(PY) tools/demo.py

check: $(READY)  ## run the fast half of the tests (two minutes on two free cores): what to run at every change
	$(PY) -m pytest -q -n auto -m 'not slow'

test: $(READY)   ## run the whole test suite (no network, no GPU needed)
	$(PY) -m pytest -q -n auto

OLDEST := .venv-oldest
test-oldest:     ## run the core of the suite with the oldest torch that pyproject.toml allows (6 GB, some 20 minutes of a core)
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet 'torch==2.6.*' 'torchvision==0.21.*' -e '.[dev]'
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -q -n auto tests/learned_samplers tests/meta_tasks

lint: $(READY)   ## ruff
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(READY)  ## mypy
	$(PY) -m mypy

wheel: $(READY)  ## build the wheel into dist/
	$(PY) -m build --wheel

benchmark: $(READY)  ## time per step of every sampler
	$(PY) tools/benchmark.py step

docs: $(READY)  ## build the documentation into build/site, offline; a dead link or a missing docstring fails
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

docs-serve: $(READY)  ## show the documentation at http://127.0.0.1:8000, and again after every change
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve

# Without ensurepip (some Debian systems) the environment is made bare and filled by the pip outside it.
$(PY):
	$(PYTHON) -m venv $(VENV) || $(PYTHON) -m venv --clear --without-pip $(VENV)

# Last, L2E's C++ is compiled ahead of its first use, where there is a compiler.
compiled = $(PY) -W ignore -c "from learned_samplers.learned.native.kernel import native_library as find; find()"

$(DEMO): pyproject.toml | $(PY)
	test -e $(READY) || { $(call install,.[demo]) && $(compiled); }
	touch $@

$(READY): pyproject.toml | $(PY)
	$(call install,.[dev])
	$(compiled)
	touch $@

clean:           ## remove what builds and runs leave behind
	rm -rf build dist *.egg-info runs .mypy_cache .ruff_cache .hypothesis
