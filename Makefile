# Needs make and Python 3.9 or newer with venv (Debian: python3-venv): each target makes its own virtual environment first.
#   make test PYTHON=python3.12          another interpreter
#   make test ARGS="tests/assignors -k naive"   more arguments for pytest
#   make test WORKERS=0            one process; without WORKERS four, each with servers of its own, and one if ARGS are given

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# Workers of pytest-xdist for `make test`; 0 for one process. The tests wait for servers half of their time, so two workers
# for each core are not too many. Each takes about 2 GB. A few tests (ARGS) are done sooner by one.
WORKERS ?= $(if $(ARGS),0,4)
# Without compiled modules on disk, each process that a test starts compiles all it imports: to collect the tests takes 11 s
# of CPU instead of 4, in each worker.
unexport PYTHONDONTWRITEBYTECODE
# The directories whose tests `make check` runs, without those that need servers.
CHECKED := $(addprefix tests/,assignors bench fuzz groups offsets repo subscription tasks)

VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
BIN := $(VENV)/bin
# one stamp per Python version, so that another PYTHON makes another environment
STAMP := $(VENV)/.installed-$(VERSION)
# the demos install less than the tests; where the tests' environment is, it has all of that
DEMO := $(or $(wildcard $(STAMP)),$(VENV)/.demo-$(VERSION))
DEMO_SPARK := $(or $(wildcard $(STAMP)),$(VENV)/.demo-spark-$(VERSION))

# $(call environment,DIRECTORY,OPTIONS): makes a virtual environment; leaves no half of one
define environment
	@$(PYTHON) -m venv $(2) $(1) || { test -x $(1)/bin/pip || rm -rf $(1); \
		echo "$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
endef

.PHONY: help demo demo-spark check serverless test test-long test-versions coverage fuzz gate lint format audit wheel pictures docs clean
.DEFAULT_GOAL := help

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(DEMO) ## A group on real servers, disturbed: members join, die and leave
	$(BIN)/python -m examples.demo $(ARGS)

demo-spark: $(DEMO_SPARK) ## The same, then Spark counts, archives and audits what the group did
	$(BIN)/python -m examples.demo --spark $(ARGS)

# mypy needs one core for as long as the tests need the other
check: ## lint, and beside it the tests that need no server: within a minute
	@$(MAKE) --no-print-directory -j 2 lint serverless

serverless: $(STAMP)
	$(BIN)/python -m pytest --serverless -n 2 $(CHECKED)

test: $(STAMP) ## All tests but the long ones (real ZooKeeper and Kafka are started)
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

# the table is of a whole run: with ARGS, which may leave tests out, it stays as it is
test-long: $(STAMP) ## The long tests too: every version of Kafka and ZooKeeper (writes docs/compatibility.md), a fresh installation
	$(BIN)/python -m pytest --long $(or $(ARGS),--compatibility=docs/compatibility.md)

test-versions: $(STAMP) ## Only the tests of each version of Kafka and ZooKeeper (writes docs/compatibility.md too)
	$(BIN)/python -m pytest --long --versioned $(or $(ARGS),--compatibility=docs/compatibility.md)

coverage: $(STAMP) ## Branch coverage of `make test` (or of ARGS), in build/coverage
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest $(ARGS); code=$$?; \
		$(BIN)/python -m coverage combine --quiet && $(BIN)/python -m coverage html --quiet \
		&& $(BIN)/python -m coverage report --skip-covered --skip-empty && exit $$code

# atheris comes here and not with the environment: it is large, and the tests do without it
fuzz: $(STAMP) ## Fuzz what others write: records, znodes, messages of members (ARGS="znodes --seconds 600")
	$(BIN)/python -m pip install --quiet atheris
	$(BIN)/python -m tests.fuzz.fuzz $(ARGS)

gate: $(STAMP) ## Fail if a ratio to a peer fell by more than 15 % (ARGS="--write" notes new ones)
	$(BIN)/python -m bench.gate $(ARGS)

lint: $(STAMP) ## ruff and mypy (strict)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

format: $(STAMP) ## Let ruff rewrite what it can
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

# in an environment of its own; --strict: what the database does not know is an error, not a pass
audit: $(STAMP) ## Known vulnerabilities of what is installed, and of the oldest versions allowed (needs the network)
	$(call environment,build/audit)
	build/audit/bin/python -m pip install --quiet pip-audit packaging "tomli; python_version < '3.11'"
	$(BIN)/python -m pip freeze --exclude-editable > build/audit/installed.txt
	build/audit/bin/python .ci/oldest.py > build/audit/oldest.txt
	build/audit/bin/python -m pip_audit --strict --no-deps --disable-pip -r build/audit/installed.txt
	build/audit/bin/python -m pip_audit --strict --no-deps --disable-pip -r build/audit/oldest.txt

# what an earlier build left in build would go into the wheel, too
wheel: ## A wheel of this checkout, in dist, for pip install on other machines
	$(call environment,build/wheel)
	rm -rf build/lib* build/bdist*
	build/wheel/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls -t dist/*.whl | head -n 1
	@case "$$(ls -t dist/*.whl | head -n 1)" in *-none-any.whl) echo "The decoder in it is not compiled, so reading takes 15 to \
	70 times as long. On Debian and Ubuntu: apt-get install gcc python3-dev, then again make wheel" >&2;; esac

pictures: $(STAMP) ## The pictures and the film of the status page, in docs/images (needs chromium with its driver)
	$(BIN)/python -m pip install --quiet pillow
	$(BIN)/python -m tests.web.pictures

docs: $(STAMP) ## The documentation, in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo build/site/index.html

clean: ## Remove the virtual environment and what tools leave behind (not the cache of jars)
	rm -rf $(VENV) .tox build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(STAMP): extras = dev
$(VENV)/.demo-$(VERSION): extras = testing
$(VENV)/.demo-spark-$(VERSION): extras = testing,spark

# the stamp comes last: an installation that broke off is begun again
$(STAMP) $(VENV)/.demo-$(VERSION) $(VENV)/.demo-spark-$(VERSION): pyproject.toml setup.py $(wildcard allocator/core/*.pyx allocator/core/*.h)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 9))' \
		|| { echo "allocator needs Python 3.9 or newer; $(PYTHON) is $(VERSION). Try: make PYTHON=python3.12" >&2; exit 1; }
	$(call environment,$(VENV),$(if $(wildcard $(VENV)/lib/python$(VERSION)),,--clear))
	@PIP_RETRIES=1 $(BIN)/python -m pip download --quiet --no-deps --dest $(VENV)/reachable setuptools \
		&& rm -rf $(VENV)/reachable || { echo "No package registry answers; pip says above which one it tried. Installing needs" \
		"PyPI, or the index in pip's settings, and the first servers need Maven Central or its mirror." >&2; exit 1; }
	$(if $(wildcard $(VENV)/lib/python*/site-packages/allocator-*.dist-info),$(BIN)/python -m pip uninstall --quiet --yes allocator)
	$(BIN)/python -m pip install --quiet --editable '.[$(extras)]'
	@touch $@
