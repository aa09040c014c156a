# Everything from nothing: `make demo` and `make test` need only Python 3.11 or later.
PYTHON ?= python3
BIN := .venv/bin
# Not --quiet: a download of hundreds of megabytes should be seen to move.
LOCKED := $(BIN)/python -m pip install --progress-bar on --disable-pip-version-check --constraint requirements.txt
EXTRAS := docs,export,fast,figures,flower,imaging,live,mimic3,omop,privacy,ray,redteam,tracking,dev

# Where bytecode is not written, every test process compiles all modules and tests anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check lint bench docs links wheel newest release-check mutate soak soak-federation browser clean

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
	$(BIN)/codespell
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

bench: .venv/.dev
	$(BIN)/python benchmarks/run.py

soak-federation: .venv/.dev  ## a federation of processes under faults, for SECONDS; then it must finish, whole
	$(BIN)/python benchmarks/soak_federation.py --seconds $(or $(SECONDS),240)
	$(BIN)/python benchmarks/soak_federation.py --seconds $(or $(SECONDS),240) --encrypted

docs: .venv/.dev  ## site/index.html, with every warning an error
	$(BIN)/python docs/tools/build_site.py site

links:  ## of the site that `make docs` has built
	$(BIN)/python docs/tools/check_links.py site

wheel: .venv/.dev  ## dist/: built, installed into an empty environment and tried there
	$(BIN)/python tools/try_wheel.py

newest:  ## the fast tests with the newest versions that pyproject.toml allows, in an environment of its own
	$(PYTHON) -m venv --clear .venv-newest
	.venv-newest/bin/python -m pip install --disable-pip-version-check --upgrade --editable ".[$(EXTRAS)]"
	.venv-newest/bin/python -m pytest -n 2 --dist worksteal -m "not slow"

release-check: .venv/.dev  ## the checklist of a release: tree, version, tests, wheel, docs, links, licences, SBOM; SKIP=tests
	$(BIN)/python tools/release_check.py $(addprefix --skip=,$(SKIP))

mutate: .venv/.dev  ## do the tests notice when the core is wrong? a sample, about twenty minutes
	$(BIN)/python tools/mutate.py

soak: .venv/.dev  ## load and faults, bounded: killed matrices, 500 browsers, a federation; see docs/reliability.md
	$(BIN)/python tools/soak.py matrix --runs $(or $(SOAK_RUNS),1000)
	$(BIN)/python tools/soak.py page
	$(MAKE) soak-federation

# The page is tested in a real browser. Where none can be installed, those tests skip and say so.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
		echo "no Chromium: install it (Debian: apt-get install chromium) to run the browser tests"

clean:
	rm -rf .venv .venv-newest build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

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
	$(LOCKED) --editable ".[$(EXTRAS)]"
	-$(LOCKED) --no-deps byzfl  # compared with in tests; its dependencies would bring torchvision
	@touch $@
