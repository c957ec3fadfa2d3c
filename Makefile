# Two targets matter: `make serve` and `make test`. Both set up .venv first, once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
OLDER  := .venv-older
# Nothing is resolved: the lock files say it all.
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps

.PHONY: serve test test-older lint bench install install-dev clean

serve: install
	@exec $(BIN)/dsv4ctl serve $(ARGS)

# What measures time has the machine to itself, and shares one stack; the rest waits most of the time, and runs three at a
# time on two cores, the longest first.
test: install-dev
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	$(BIN)/python -m pytest --ignore=tests/unit --ignore=tests/ssh --ignore=tests/calibration -m "not beside"
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "beside or not stack" \
		tests/stack tests/calibration tests/ssh tests/unit
endif

# The abort and status part on SGLang 0.5.15: docs/older-engines.md.
test-older: install-dev $(OLDER)/.installed
	$(BIN)/python -m pytest tests/older $(ARGS)

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install-dev
	$(BIN)/python -m benchmarks.startup $(ARGS)
	$(BIN)/python -m benchmarks.poll
	$(BIN)/python -m benchmarks.reliability
	$(BIN)/python -m benchmarks.co_restart
	$(BIN)/python -m pytest -s tests/soak

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(VENV)/.installed: requirements/serving-cpu.txt pyproject.toml requirements/check_torch.py
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile -r requirements/serving-cpu.txt
	$(BIN)/python requirements/check_torch.py
	$(PIP) --no-compile --no-build-isolation --editable .
	@# Without compiled files every start of an engine would compile thousands of modules again.
	$(BIN)/python -m compileall -q -j 0 -x '/tests?/' $(VENV)/lib >/dev/null || true
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements/dev.txt
	$(PIP) -r requirements/dev.txt
	@touch $@

$(OLDER)/.installed: requirements/older-0.5.15.txt requirements/older.py $(VENV)/.installed
	$(BIN)/python requirements/older.py $(OLDER) $<
	@touch $@

clean:
	rm -rf $(VENV) $(OLDER) .mypy_cache .ruff_cache .pytest_cache .hypothesis
