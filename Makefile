# make help       print these lines
# make serve      set up, build the ops, start the gateway on 127.0.0.1 (HTTP 8000, gRPC 8001); RUNTIME=gpu for GPUs
# make build      like make serve, without serving
# make test       set up what tests need, with the engines, and run them; PART=ops|kernels|engines|build|models|gateway|capacity|protocol|operations|release runs a part
# make test-all   like make test, but compiles for every instruction set and CUDA architecture, writes faults into kernels and runs every case
# make gpu-check  run every case of every op on an NVIDIA GPU (needs nvcc); writes benchmarks/results/<gpu>.md
# make versions   run every case in many versions of engines; writes docs/versions.md; an hour or more
# make fuzz       send made-up inputs to readers and to a gateway for FUZZ_SECONDS; TARGET="http grpc" takes some (needs clang++)
# make docs     build the site of docs/, with its reference, in build/docs
# make check      formatting, lint and types
# make format     format Python, C++ and CUDA
# make console    bundle the console from console/ into opgate/service/console/files (needs node and npm)
# make models     train and export every model again (installs torch, needs opgate build --engine torch and espeak-ng)
# make bench      the benchmarks; results go to benchmarks/results/
# make soak       minutes of requests while models are reloaded and workers killed; writes benchmarks/results/soak.md
# make load-test  send requests to a running gateway for DURATION (60s); HOST=http://... names another gateway
# make release    the wheel, the sources, the context of the images and the notes into dist/; ARGS=--arm64 makes the wheel for ARM too
# make clean      remove the virtual environment and what was built

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# cpu or gpu: which ONNX Runtime a new virtual environment gets. They can't be installed together.
RUNTIME ?= cpu
# The engines whose ops are tested, and nvcc, which compiles CUDA kernels. Tests of others are skipped.
ENGINES ?= torch tensorflow litert tensorrt nvcc
# ops, engines, gateway, protocol or models: which tests run. All by default.
PART ?=
# How many processes run the tests. Those that start servers mostly wait, the others compile. Each takes up to 1 GB.
PROCESSES ?= 5
FUZZ_SECONDS ?= 300
# Those of tests/fuzz/README.md, all by default.
TARGET ?=
# Where the load goes, how many users send it and for how long. An empty GRPC_HOST is port 8001 of HOST.
HOST ?= http://127.0.0.1:8000
GRPC_HOST ?=
USERS ?= 8
DURATION ?= 60s
BIN := $(VENV)/bin

# The tests start hundreds of Python processes. Each would compile its imports again if Python kept nothing.
unexport PYTHONDONTWRITEBYTECODE

# Two steps at once would install into one virtual environment.
.NOTPARALLEL:

.PHONY: help release versions console docs serve test .said-test test-all gpu-check fuzz check format models bench soak load-test build clean

# What uses ONNX Runtime without opgate sends no usage data either.
export ORT_DISABLE_TELEMETRY ?= 1

# The first target is the one of `make` alone.
help:
	@sed -n '/^# make /s/^# //p' Makefile

serve: build
	exec $(BIN)/opgate serve $(ARGS)

# For this machine's processor. CUDA kernels are compiled only for an ONNX Runtime that can run them.
build: $(VENV)/.serve
	@test -e build/ops/manifest.json || echo "compiling the op library: 3 to 5 minutes on 2 cores, once"
	$(BIN)/opgate build --arch native --engine onnxruntime --cuda "$$($(BIN)/python -c 'import onnxruntime as engine; \
	  print("auto" * ("CUDAExecutionProvider" in engine.get_available_providers()))')"

test: .said-test $(VENV)/.test build/toolchain/.headers
	@$(BIN)/python -m pytest --stages --durations 20 --processes $(PROCESSES) --part="$(PART)" $(ARGS)

test-all: $(VENV)/.test build/toolchain/.headers
	OPGATE_TEST_ALL=1 $(BIN)/python -m pytest --stages --durations 20 --processes $(PROCESSES) --part="$(PART)" $(ARGS)

.said-test:
	@echo "All tests take about 25 minutes on 2 cores, packages included, and a part one to three when what they need is built."

# Uses the packages of $(PYTHON) if it has them, because the PyTorch and onnxruntime-gpu of a GPU machine are hard to
# replace.
gpu-check:
	@if $(PYTHON) -c 'import ml_dtypes, numpy, onnx, rich' 2>/dev/null; then \
	  $(PYTHON) -m opgate.ops_build.gpu_check.check $(ARGS); \
	else \
	  $(MAKE) $(VENV)/.serve && $(BIN)/python -m opgate.ops_build.gpu_check.check $(ARGS); \
	fi

# Every case of every op in many versions of engines, and the page docs/versions.md. It takes hours, and 30 GB: ARGS="--only
# openvino" tries one engine. Nothing runs the kernels for GPUs, so they are not optimized.
versions: $(VENV)/.test build/toolchain/.headers
	OPGATE_CUDA_FLAGS="-O0 -Xcicc=-O0" $(BIN)/opgate build --arch native --cuda 90-virtual
	$(BIN)/python -m tests.versions $(ARGS)

# tests/fuzz/README.md says what the targets are and what becomes of what is found.
fuzz: $(VENV)/.test build
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(TARGET)

check: $(VENV)/.test
	$(BIN)/python -m pytest -q tests/test_style.py

format: $(VENV)/.test
	$(BIN)/ruff check --fix-only --exit-zero .
	$(BIN)/ruff format .
	git ls-files --cached --others --exclude-standard '*.cpp' '*.h' '*.cu' '*.cuh' | xargs $(BIN)/clang-format -i

console:
	cd console && npm ci --no-audit --no-fund && npm run check && npm run build

# The pages of the ops are made from the op library. DOCS_VERSIONS="0.1 0.2" links to sites that lie beside this one.
docs: $(VENV)/.docs build
	$(BIN)/python docs/site/build.py build/docs

models: $(VENV)/.models
	$(BIN)/python -m models.my_add
	$(BIN)/python -m models.digit_detector train
	$(BIN)/python -m models.digit_detector export
	$(BIN)/python -m models.leaky_relu export
	$(BIN)/python -m models.knn export
	@command -v espeak-ng >/dev/null || { echo "the keyword spotter's words need espeak-ng: apt-get install espeak-ng"; exit 1; }
	for model in keyword_spotter pointcloud_segmenter bev_segmenter; do \
	  $(BIN)/python -m models.$$model train && $(BIN)/python -m models.$$model export || exit 1; \
	done

bench: $(VENV)/.bench build
	$(BIN)/python benchmarks/serve_overhead.py
	$(BIN)/python benchmarks/image_preprocess.py

soak: $(VENV)/.test build
	$(BIN)/python benchmarks/soak.py --output benchmarks/results/soak.md $(ARGS)

# ARGS has options of deploy/locust/README.md, such as ARGS="--max-p99-ms 50 --shape ramp JsonUser".
load-test: $(VENV)/.load
	@$(BIN)/python -c 'import urllib.request; urllib.request.urlopen("$(HOST)/v2/health/ready", timeout=5)' 2>/dev/null || \
	  { echo "no gateway is ready at $(HOST): run make serve first, or name another with HOST=http://..."; exit 1; }
	@rm -rf build/load-test
	@$(BIN)/locust -f deploy/locust/locustfile.py --headless --host $(HOST) --grpc-host "$(GRPC_HOST)" --users $(USERS) \
	  --run-time $(DURATION) --html build/load-test/report.html --csv build/load-test/load $(ARGS); status=$$?; \
	  echo "The report is build/load-test/report.html, its tables are build/load-test/*.csv"; exit $$status

release: $(VENV)/.test
	$(BIN)/python deploy/release.py $(ARGS)

clean:
	rm -rf build $(VENV)

# Each stamp file says that the virtual environment has the packages that pyproject.toml lists.
NATIVE := $(wildcard service/native/*.cpp service/native/*.h service/native/build_hook.py service/rpc/*.cpp service/rpc/*.h)

$(VENV)/.serve: pyproject.toml $(NATIVE) | $(VENV)/bin/pip
	@sh deploy/system-packages.sh serve
	@echo "installing the Python packages: one to two minutes, once"
	@$(BIN)/pip install --quiet --editable '.[$(RUNTIME)]'
	touch $@

$(VENV)/.test: pyproject.toml $(NATIVE) | $(VENV)/bin/pip
	@sh deploy/system-packages.sh test
	@echo "1 of 3  Python packages, about 2 GB"
	@$(BIN)/python deploy/test_packages.py $(RUNTIME),test "$(ENGINES)"
	touch $@ $(VENV)/.serve

build/toolchain/.headers: | $(VENV)/.test
	@echo "2 of 3  headers of engines"
	@sh deploy/test-headers.sh $(VENV) build/toolchain
	@touch $@

$(VENV)/.models: $(VENV)/.test
	$(BIN)/pip install --quiet --editable '.[$(RUNTIME),test,models]'
	touch $@

$(VENV)/.docs: $(VENV)/.serve
	$(BIN)/pip install --quiet --editable '.[$(RUNTIME),docs]'
	touch $@

$(VENV)/.bench: $(VENV)/.serve
	$(BIN)/pip install --quiet --editable '.[$(RUNTIME),bench]'
	touch $@

$(VENV)/.load: $(VENV)/.serve
	$(BIN)/pip install --quiet --editable '.[$(RUNTIME),load]'
	touch $@

$(VENV)/bin/pip:
	@sh deploy/system-packages.sh venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "opgate needs Python 3.11 or later: make PYTHON=/path/to/python3 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
