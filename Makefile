# make demo | test | lint | coverage | bench | bench-smoke | chaos | deb | rpm     each sets up .venv first; nothing else is installed anywhere
#
#   make demo FILES="/var/log/syslog app.log"    ships these files instead of the logs it finds
#   make test ARGS="-k log -x"                   passes arguments on to pytest
#   make chaos ARGS="--minutes 5 --only killed"   lets faults strike for minutes, and writes systemd/FAULTS.md
#   make deb                                      leaves dist/appliance_VERSION_ARCH.deb, for this distribution
#   make rpm                                      leaves dist/appliance-VERSION-1.ARCH.rpm, likewise
#   make bench ARGS="kafka_rows --rounds 7"       measures, beside all brokers that are installed; writes perf/README.md
#   make setup PYTHON=/opt/python3.12/bin/python3

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	"$$p" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
FILES ?=
ARGS ?=
BIN := .venv/bin
COVERED := broker groups log records security shared wire

unexport PYTHONDONTWRITEBYTECODE  # else each of the hundreds of processes that tests start compiles the package anew

.PHONY: demo collect test lint coverage bench bench-smoke chaos deb rpm setup clean

setup:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer here (looked for python3, python3.11 to 3.14 on PATH);" \
		"install one or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" .ci/setup.py

demo: setup
	@$(BIN)/appliance demo $(FILES)

test: setup
	@$(BIN)/python -m pytest -q -n 5 --dist loadgroup --no-loadscope-reorder --max-worker-restart 0 $(ARGS)

collect: setup  # compiles the tests and runs none
	@$(BIN)/python -m pytest -q --collect-only $(ARGS)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

coverage: setup  # of the packages that pyproject.toml names, by the tests in their folders
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q -n 5 --dist loadgroup --no-loadscope-reorder --max-worker-restart 0 \
		$(COVERED:%=tests/%) $(ARGS)
	@$(BIN)/coverage combine -q && $(BIN)/coverage report

bench: setup
	@$(BIN)/python -m pip install -q --disable-pip-version-check --editable '.[bench]'
	@trap : INT TERM; $(BIN)/appliance bench --peer all --results perf/results $(ARGS); status=$$?; \
		$(BIN)/python perf/_page.py && exit $$status  # what was measured is on the page, also after Ctrl-C

bench-smoke: setup  # without pipeline.py, whose smallest size takes a minute and runs what tests/spark runs
	@echo "== appliance bench --smoke"; $(BIN)/appliance bench --smoke
	@for file in $(filter-out perf/_% perf/pipeline.py,$(wildcard perf/*.py)); do \
		echo "== $$file --smoke"; $(BIN)/python "$$file" --smoke || exit 1; done

chaos: setup
	@$(BIN)/python -m tests.crash.matrix $(ARGS)

deb rpm: setup
	@$(BIN)/python -m systemd.packages $@ $(ARGS)

clean:
	rm -rf .venv dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
