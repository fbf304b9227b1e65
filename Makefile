# make demo  installs brim and runs the whole story on any machine, no GPU needed
# make test  installs what tests need and runs every check that CI runs
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: demo test lint types unit zoo zoo-all install clean

demo: install
	$(BIN)/brim demo

test: lint types unit zoo

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev,train,watch,datasets]'
	$(PIP) --no-deps dashscope  # tests read Qwen's vocabulary from it; its code is never run
	@# bytecode for 13,000 files on all cores: pip would make it on one, half of the whole time
	$(BIN)/python -m compileall -qq -j 0 -x '/tests/' $(VENV)/lib || true
	touch $(STAMP)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

# Two workers, each with a half of the folders; the one that is done first takes from the other.
unit: install
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -m 'not zoo' -q

# Real training scripts, one at a time: a verdict about time needs the cores to itself.
zoo: install
	$(BIN)/pytest -m 'zoo and not slow' -q

zoo-all: install
	$(BIN)/pytest -m zoo -q

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
