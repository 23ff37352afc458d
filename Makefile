# make serve   set up, build the ops, start the gateway on 127.0.0.1 (HTTP 8000, gRPC 8001); RUNTIME=gpu for GPUs
# make test    set up what tests need and run them
# make test-all  like make test, but compiles the kernels for every CUDA architecture and tries every fault
# make gpu-check run every case of every op on an NVIDIA GPU (needs nvcc); writes benchmarks/results/<gpu>.md
# make check   formatting, lint and types
# make models  train the detector and export every model again (installs torch)
# make bench   the benchmarks; results go to benchmarks/results/

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# cpu or gpu: which ONNX Runtime a new virtual environment gets. They can't be installed together.
RUNTIME ?= cpu
# make test EXTRAS=cpu,test,torch,tensorrt also runs the tests of PyTorch and TensorRT, which are skipped otherwise.
EXTRAS ?= $(RUNTIME),test
BIN := $(VENV)/bin

.PHONY: serve test test-all gpu-check check format models bench build clean

serve: build
	exec $(BIN)/opgate serve $(ARGS)

build: $(VENV)/.serve
	$(BIN)/opgate build --engine onnxruntime

test: $(VENV)/.test
	$(BIN)/python -m pytest $(ARGS)

test-all: $(VENV)/.test
	OPGATE_TEST_ALL=1 $(BIN)/python -m pytest $(ARGS)

# Uses the packages of $(PYTHON) if it has them, because the PyTorch and onnxruntime-gpu of a GPU machine are hard to
# replace.
gpu-check:
	@if $(PYTHON) -c 'import ml_dtypes, numpy, onnx, rich' 2>/dev/null; then \
	  $(PYTHON) -m ops_build.gpu.check $(ARGS); \
	else \
	  $(MAKE) $(VENV)/.serve && $(BIN)/python -m ops_build.gpu.check $(ARGS); \
	fi

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

# Each stamp file says that the virtual environment has the packages that pyproject.toml lists.
NATIVE := $(wildcard service/native/*.cpp service/native/*.h service/native/build_hook.py service/rpc/*.cpp service/rpc/*.h)

$(VENV)/.serve: pyproject.toml $(NATIVE) | $(VENV)/bin/pip
	sh deploy/system-packages.sh serve
	$(BIN)/pip install --quiet --editable '.[$(RUNTIME)]'
	touch $@

$(VENV)/.test: pyproject.toml $(NATIVE) | $(VENV)/bin/pip
	sh deploy/system-packages.sh test
	$(BIN)/pip install --quiet --editable '.[$(EXTRAS)]'
	touch $@ $(VENV)/.serve

$(VENV)/.models: $(VENV)/.test
	$(BIN)/pip install --quiet --editable '.[$(RUNTIME),test,models]'
	touch $@

$(VENV)/.bench: $(VENV)/.serve
	$(BIN)/pip install --quiet --editable '.[$(RUNTIME),bench]'
	touch $@

$(VENV)/bin/pip:
	sh deploy/system-packages.sh venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "opgate needs Python 3.11 or later: make PYTHON=/path/to/python3 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
