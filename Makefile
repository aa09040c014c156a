# Everything from nothing: `make demo` and `make test` need only Python 3.11 or later.
PYTHON ?= python3
BIN := .venv/bin
# Not --quiet: a download of hundreds of megabytes should be seen to move.
LOCKED := $(BIN)/python -m pip install --progress-bar on --disable-pip-version-check --constraint requirements.txt

.PHONY: demo test check lint bench docs browser clean

demo: .venv/.core
	$(BIN)/wardround demo

test: .venv/.dev browser
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/.dev  ## the fast subset, for every day
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.dev
	$(BIN)/python benchmarks/run.py

docs: .venv/.dev  ## site/index.html, with every warning an error
	$(BIN)/python docs/tools/build_site.py site

# The page is tested in a real browser. Where none can be installed, those tests skip and say so.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
		echo "no Chromium: install it (Debian: apt-get install chromium) to run the browser tests"

clean:
	rm -rf .venv build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

# `python -m pip` throughout: a console script would break when the folder is moved.
.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.core: pyproject.toml requirements.txt | .venv/bin/python
	@echo "Setting up .venv: about 1.6 GB on disk, most of it torch (several GB more where torch comes with CUDA)."
	@echo "That takes a few minutes the first time; pip shows below what it is doing."
	$(LOCKED) --editable ".[fast,live]"
	@touch $@

.venv/.dev: .venv/.core
	@echo "Adding what tests, documentation and all extras need: about 0.7 GB more."
	$(LOCKED) --editable ".[docs,export,fast,figures,flower,imaging,live,mimic3,privacy,ray,redteam,tracking,dev]"
	-$(LOCKED) --no-deps byzfl  # compared with in tests; its dependencies would bring torchvision
	@touch $@
