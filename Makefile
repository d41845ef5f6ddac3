# Everything from a fresh clone with Python 3.11 or newer, venv and pip alone.
#
#   make demo     fine-tune a real encoder, pack it, unpack it, check the certificate (about 5 minutes)
#   make test     the default suite            make slow    the tests that take minutes
#   make lint     style, types, import rules   make clean   remove what these made
#
# On Linux the default torch wheel brings CUDA, which assay does not need (about 3 GB).  To save the download, let pip
# see a CPU wheel: either `make demo TORCH=path/to/torch-2.13.0+cpu-....whl`, or set PIP_EXTRA_INDEX_URL
# (or PIP_FIND_LINKS) to an index of CPU wheels; pip then takes `2.13.0+cpu` by itself.

PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   := .venv
PY     := $(VENV)/bin/python

.PHONY: demo test slow lint clean

demo: $(VENV)/.demo
	OMP_WAIT_POLICY=PASSIVE $(PY) -m demo.run

test: $(VENV)/.dev
	$(PY) -m pytest $(PYTEST_ARGS)

slow: $(VENV)/.dev
	$(PY) -m pytest -m slow -n 2 $(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

clean:
	rm -rf $(VENV) build dist demo-run src/*.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch first and by itself, so that no later requirement picks another build of it.
$(VENV)/.torch: Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "assay needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet '$(TORCH)'
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PY) -m pip install --quiet --editable '.[torch,plot]'
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PY) -m pip install --quiet --editable '.[all,dev]'
	@touch $@
