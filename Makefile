# make serve   set up, build the ops, start the gateway on 127.0.0.1 (HTTP 8000, gRPC 8001)
# make test    set up what tests need and run them
# make check   formatting, lint and types
# make models  train the detector and export every model again (installs torch)
# make bench   the benchmarks; results go to benchmarks/results/

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin

.PHONY: serve test check format models bench build clean

serve: build
	exec $(BIN)/opgate serve $(ARGS)

build: $(VENV)/.serve
	$(BIN)/opgate build --engine onnxruntime

test: $(VENV)/.test
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs $(BIN)/clang-format --dry-run --Werror

format: $(VENV)/.test
	$(BIN)/ruff check --fix-only --exit-zero .
	$(BIN)/ruff format .
	git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs $(BIN)/clang-format -i

models: $(VENV)/.models
	$(BIN)/python -m models.my_add
	$(BIN)/python -m models.digit_detector train
	$(BIN)/python -m models.digit_detector export

bench: $(VENV)/.bench build
	$(BIN)/python benchmarks/serve_overhead.py
	$(BIN)/python benchmarks/image_preprocess.py

clean:
	rm -rf build $(VENV)

# A stamp tells that the virtual environment holds what pyproject.toml asks for.
$(VENV)/.serve: pyproject.toml | $(VENV)/bin/pip
	sh deploy/system-packages.sh serve
	$(BIN)/pip install --quiet --editable '.[cpu]'
	touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/pip
	sh deploy/system-packages.sh test
	$(BIN)/pip install --quiet --editable '.[cpu,test]'
	touch $@ $(VENV)/.serve

$(VENV)/.models: $(VENV)/.test
	$(BIN)/pip install --quiet --editable '.[cpu,test,torch]'
	touch $@

$(VENV)/.bench: $(VENV)/.serve
	$(BIN)/pip install --quiet --editable '.[cpu,bench]'
	touch $@

$(VENV)/bin/pip:
	sh deploy/system-packages.sh venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "opgate needs Python 3.11 or later: make PYTHON=/path/to/python3 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
