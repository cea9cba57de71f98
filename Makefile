# Every target sets up its own environment in .venv; nothing is installed by hand.

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
OUT   := build

.PHONY: setup java demo test check coverage bench docs clean

setup: $(STAMP) java

# Spark needs Java 17 or newer. Root on Debian gets it installed; anyone else is told what to do.
java:
	@recent() { \
	  said=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'); \
	  [ "$${said:-0}" -ge 17 ]; \
	}; \
	if ! recent && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing Java 17 for Spark ..." && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openjdk-17-jre-headless >/dev/null; \
	fi; \
	if ! recent; then \
	  echo "make: no Java 17 or newer found, Spark needs one: e.g. apt-get install openjdk-17-jre-headless, or set JAVA_HOME" >&2; exit 1; \
	fi

$(STAMP): pyproject.toml constraints.txt
	@for python in python3.11 python3; do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "make: no Python 3.11 or newer found as python3.11 or python3: install one, e.g. apt-get install python3" >&2; exit 1; \
	fi; \
	if ! $$found -m venv $(VENV); then \
	  echo "make: $$found cannot make a virtual environment: install its venv module, e.g. apt-get install python3-venv" >&2; exit 1; \
	fi
	@echo "setting up $(VENV) ..."
	@# what builds Tidings, and setuptools for PySpark, which comes as source: the one a Python brings may be too old
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt hatchling editables setuptools
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  --no-build-isolation --editable '.[server,spark,lab,dev]'
	@touch $@

# Three regions of three replicas as real processes: a link is cut, a head, a middle and a tail are killed and replaced
# while sixty clients receive; fails if the audit finds anything. (The same in simulation, with figures against the
# paper's claims: tidings lab run sprinkler --scale quick --out build/demo.)
demo: setup
	$(BIN)/tidings demo

# Before every commit: under eight minutes on two cores.
test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 4 -m "not check"

# Before a merge, beside `make test`: long campaigns and slow Spark runs, under thirty minutes on two cores.
check: setup
	$(BIN)/pytest -n 2 -m check
	$(BIN)/tidings check sprinkler --seeds 0..300
	$(BIN)/tidings check gryphon --seeds 0..200
	$(BIN)/tidings check cluster --seeds 1..4
	$(BIN)/tidings check cluster --power-cuts 2
	$(BIN)/tidings check spark --seeds 0..2

# Which lines no test runs. Tracing makes all tests slower, so this is a report of its own.
coverage: setup
	$(BIN)/pytest -n 4 --cov --cov-report=term

bench: setup
	$(BIN)/tidings bench gc
	$(BIN)/tidings bench sim

# The command reference is generated from the commands themselves.
docs: $(STAMP)
	$(BIN)/typer tidings.cli.app utils docs --name tidings --title "The tidings command" --output docs/cli.md

clean:
	rm -rf $(VENV) $(OUT) dist .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
