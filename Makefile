# make demo   set up, train a network on the digits that scikit-learn ships, draw what it learned
# make test   set up and run the tests
# make build  rebuild the C++ extension
# make bench  time step, prediction, selected model and load, beside the last time (of another commit, say)
# make figures   the longer benchmarks behind the figures in bench/README.md, quick
# make lint   check style and types
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test build bench figures lint clean

demo: $(VENV)/installed
	$(BIN)/fastlbbnn train digits --hidden 100 --density 0.03 --out runs/demo
	$(BIN)/fastlbbnn report runs/demo

test: $(VENV)/installed
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

# Saved in .benchmarks/ under the commit; the first run has nothing to be compared with.
bench: $(VENV)/installed
	$(BIN)/python -m pytest bench/suite -q --override-ini=pythonpath=bench/suite --benchmark-autosave \
		--benchmark-columns=min,median,rounds --benchmark-warmup=on $(if $(wildcard .benchmarks/*),--benchmark-compare)

figures: $(VENV)/installed
	$(BIN)/python bench/train_step.py --quick
	$(BIN)/python bench/sparse_train.py --quick
	$(BIN)/python bench/memory.py --quick
	$(BIN)/python bench/sparse.py --quick

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/python -m mypy

# A virtual environment with the pinned versions, then this package in it.
$(VENV)/requirements: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(VENV)/installed: $(VENV)/requirements setup.py pyproject.toml $(shell find csrc -type f)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	$(BIN)/fastlbbnn info
	touch $@

build:
	rm -f $(VENV)/installed
	$(MAKE) $(VENV)/installed

clean:
	rm -rf $(VENV) build *.egg-info fastlbbnn/*.so
