"""Instances on GPUs. There is none here: what the gateway asks for is tried, and that it refuses what it can't have."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from google.protobuf import text_format
from onnx import TensorProto, helper
from tritonclient.grpc.model_config_pb2 import ModelConfig

from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.request import Request, run
from opgate.service.execution.gpus import NoGpu, tensorrt_library
from opgate.service.execution.session import Session, SessionOptions, _providers
from opgate.service.repository import loader
from opgate.service.repository.config import ConfigError
from opgate.service.repository.devices import Accelerators, accelerators, instances, place
from opgate.service.repository.op_libraries import counterpart, sha256, trusted_library
from tests.service.onnx_models import double

GROUPS = [
    ("", 0, [None]),
    ("instance_group [ { count: 2 } ]", 0, [None, None]),
    ("", 2, [0, 1]),
    ("instance_group [ { kind: KIND_CPU count: 2 } ]", 2, [None, None]),
    ("instance_group [ { kind: KIND_GPU } ]", 2, [0, 1]),
    ("instance_group [ { kind: KIND_GPU gpus: [ 1 ] count: 2 } ]", 2, [1, 1]),
    ("instance_group [ { gpus: [ 1 ] } , { kind: KIND_CPU } ]", 2, [1, None]),
    ("instance_group [ { kind: KIND_MODEL count: 2 } ]", 2, [None, None]),
]


def gpus(count, broken=False):
    def answer():
        if not count:
            raise NoGpu("there is no GPU here: for a reason", broken)
        return count

    return answer


def config_of(text):
    return text_format.Parse(text, ModelConfig(name="m"))


@pytest.mark.parametrize(("text", "count", "devices"), GROUPS)
def test_instances_are_placed_as_triton_places_them(text, count, devices):
    config = config_of(text)
    assert place(config, gpus(count)) == devices
    placed = [gpu for group in config.instance_group for _ in range(group.count) for gpu in group.gpus or [None]]
    assert sorted(placed, key=str) == sorted(devices, key=str)
    assert all(group.name and group.kind for group in config.instance_group)
    assert place(config, gpus(count)) == devices


@pytest.mark.parametrize(
    ("text", "count", "says"),
    [
        ("instance_group [ { kind: KIND_GPU } ]", 0, "instance_group[0].kind KIND_GPU: there is no GPU here: for a"),
        ("instance_group [ { gpus: [ 0 ] } ]", 0, "instance_group[0].kind KIND_GPU: there is no GPU here: for a"),
        ("instance_group [ { } , { gpus: [ 2 ] } ]", 2, "instance_group[1].gpus 2: expected 0 to 1"),
        ("instance_group [ { gpus: [ -1 ] } ]", 2, "instance_group[0].gpus -1: expected 0 to 1"),
    ],
)
def test_gpus_that_are_not_there_are_refused(text, count, says):
    with pytest.raises(ConfigError) as error:
        place(config_of(text), gpus(count))
    assert says in error.value.message


def test_a_gpu_that_cannot_be_used_is_told(caplog):
    place(config_of(""), gpus(0))
    assert not caplog.records
    assert place(config_of(""), gpus(0, broken=True)) == [None]
    assert "model 'm' runs on the CPU: there is no GPU here: for a reason" in caplog.text


def test_instances_have_the_names_that_triton_gives_them():
    groups = "{ count: 2 } , { kind: KIND_MODEL name: 'own' } , { kind: KIND_CPU count: 2 }"
    config = config_of(f"instance_group [ {groups} ]")
    place(config, gpus(2))
    assert [tuple(instance) for instance in instances(config)] == [
        ("m_0_0", "GPU", 0), ("m_0_0", "GPU", 1), ("m_0_1", "GPU", 0), ("m_0_1", "GPU", 1),
        ("own_0", "MODEL", None), ("m_2_0", "CPU", None), ("m_2_1", "CPU", None),
    ]  # fmt: skip
    alone = config_of("")
    place(alone, gpus(0))
    assert instances(alone) == [("m_0", "CPU", None)]


def accelerated(name, *parameters, group="{ kind: KIND_GPU }", old=False):
    if old:
        text = " ".join(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters
        )
        return config_of(f"instance_group [ {group} ] {text}")
    text = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters)
    block = f'execution_accelerators {{ gpu_execution_accelerator : [ {{ name: "{name}" {text} }} ] }}'
    return config_of(f"instance_group [ {group} ] optimization {{ {block} }}")


def test_accelerators_become_options_of_the_providers(tmp_path):
    assert accelerators(config_of("")).tensorrt is None
    assert accelerators(accelerated("tensorrt")).tensorrt == {}
    asked = [("precision_mode", "FP16"), ("max_workspace_size_bytes", "1024"), ("trt_timing_cache_enable", "True")]
    asked.append(("int8_calibration_table_name", "t"))
    found = accelerators(accelerated("tensorrt", *asked)).tensorrt
    assert found == {
        "trt_fp16_enable": "True", "trt_max_workspace_size": "1024", "trt_timing_cache_enable": "True",
        "trt_int8_calibration_table_name": "t",
    }  # fmt: skip
    options = SessionOptions(gpu=1, tensorrt=found, tensorrt_plugins=(tmp_path / "libp.so",), cuda={"use_tf32": "0"})
    tensorrt, cuda = _providers(options)
    assert cuda == ("CUDAExecutionProvider", {"device_id": "1", "use_tf32": "0"})
    assert tensorrt[0] == "TensorrtExecutionProvider"
    assert tensorrt[1] == {**found, "device_id": "1", "trt_extra_plugin_lib_paths": str(tmp_path / "libp.so")}
    assert accelerators(accelerated("cuda", ("use_tf32", "0"))).cuda == {"use_tf32": "0"}


def test_without_a_gpu_accelerators_mean_nothing():
    for config in (
        accelerated("tensorrt", group="{ kind: KIND_CPU }"),
        accelerated("nothing", group="{ kind: KIND_CPU }"),
        accelerated("", ("gpu_mem_limit", "1"), group="{ kind: KIND_CPU }", old=True),
    ):
        assert accelerators(config) == Accelerators({}, None)


def test_options_of_the_cuda_provider_where_older_configs_have_them():
    old = [("cudnn_conv_algo_search", "1"), ("arena_extend_strategy", "1"), ("gpu_mem_limit", "4096")]
    config = accelerated("", *old, ("do_copy_in_default_stream", "0"), old=True)
    assert accelerators(config).cuda == {
        "cudnn_conv_algo_search": "HEURISTIC", "arena_extend_strategy": "kSameAsRequested", "gpu_mem_limit": "4096",
        "do_copy_in_default_stream": "0",
    }  # fmt: skip


def test_files_by_compute_capability_are_refused_on_a_gpu(repository, reason, on_the_cpu):
    double(repository, "m", config="max_batch_size: 8 cc_model_filenames { key: '8.0' value: 'other.onnx' }")
    assert "put the file for this GPU into default_model_filename" in reason("m")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (accelerated("openvino"), "gpu_execution_accelerator 'openvino': expected cuda or tensorrt"),
        (
            accelerated("", ("cudnn_conv_algo_search", "3"), old=True),
            "'cudnn_conv_algo_search': expected 0 to 2, got 3",
        ),
        (accelerated("tensorrt", ("precision_mode", "FP4")), "precision_mode 'FP4': expected one of FP32, FP16"),
        (accelerated("tensorrt", ("fast", "1")), "parameter 'fast': expected one of trt_auxiliary_streams"),
        (accelerated("tensorrt", ("trt_extra_plugin_lib_paths", "/x")), "parameter 'trt_extra_plugin_lib_paths'"),
        (accelerated("tensorrt", ("trt_engine_decryption_lib_path", "/x")), "'trt_engine_decryption_lib_path'"),
        (accelerated("cuda", ("device_id", "1")), "parameter 'device_id': expected one of arena_extend_strategy"),
        (accelerated("cuda", ("gpu_external_alloc", "1")), "parameter 'gpu_external_alloc'"),
        (accelerated("cuda", ("enable_cuda_graph", "1")), "parameter 'enable_cuda_graph'"),
    ],
)
def test_accelerators_that_cannot_be_used_are_refused(config, says):
    with pytest.raises(ConfigError) as error:
        accelerators(config)
    assert says in error.value.message


def test_a_session_on_a_gpu_never_runs_on_the_cpu_instead(repository, reason, monkeypatch):
    """ONNX Runtime itself makes a session on the CPU if it can't load its provider."""
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this ONNX Runtime has a CUDA provider")
    double(repository, "m", config="max_batch_size: 8 instance_group [ { kind: KIND_GPU } ]")
    monkeypatch.setattr(loader, "place", lambda config: place(config, gpus(1)))
    assert "ONNX Runtime can't load CUDAExecutionProvider: this ONNX Runtime doesn't have it" in reason("m")


@pytest.fixture
def on_the_cpu(monkeypatch):
    """Opens the sessions of GPUs on the CPU, and returns the options of every session that is opened.

    It sets what ONNX Runtime says about the nodes: its CPU runs all of them here.
    """
    opened, nodes = [], {"CUDAExecutionProvider": {"Add"}}

    class Opened(Session):
        def __init__(self, path, options):
            opened.append(options)
            super().__init__(path, options)
            self.nodes = (lambda: dict(nodes)) if nodes else self.nodes

    monkeypatch.setattr("opgate.service.execution.session._providers", lambda options: [("CPUExecutionProvider", {})])
    monkeypatch.setattr("opgate.service.execution.session.Session", Opened)
    monkeypatch.setattr(loader, "place", lambda config: place(config, gpus(2)))
    return opened, nodes


def test_each_instance_on_a_gpu_has_a_session_and_those_on_the_cpu_share_one(repository, load, on_the_cpu):
    groups = "instance_group [ { kind: KIND_CPU count: 2 }, { kind: KIND_GPU count: 2 } ]"
    double(repository, "m", config=f"max_batch_size: 8 {groups}")
    opened, _ = on_the_cpu
    model = load().find("m").model
    assert [options.gpu for options in opened] == [0, 1, 0, 1, None]
    x = np.ones((1, 4), np.float32)
    used = []
    for session in {id(s): s for s in (instance.session for instance in model.executor._instances.all)}.values():
        session.run = lambda outputs, feeds, options, session=session: used.append(session.gpu) or [feeds["x"] * 2]

    async def main():
        for _ in range(10):
            result = await run(model.submit, Request({"x": x}, 1, (("x", (4,)),), ("y",)))
            assert result["y"].tolist() == [[2, 2, 2, 2]]
        await model.executor.close()

    asyncio.run(main())
    assert set(used) == {0, 1, None}


@pytest.mark.parametrize(
    ("text", "nodes", "says"),
    [
        (
            "instance_group [ { kind: KIND_GPU } ]",
            {"CPUExecutionProvider": {"Add"}},
            "no node of the model has a kernel",
        ),
        ("instance_group [ { gpus: [ 0 ] } ]", {"CPUExecutionProvider": {"Add"}}, "no node of the model has a kernel"),
        (
            "optimization { execution_accelerators { gpu_execution_accelerator : [ { name: 'tensorrt' } ] } }",
            {"CUDAExecutionProvider": {"Add"}},
            "'tensorrt': TensorRT takes no node of the model",
        ),
    ],
)
def test_a_gpu_that_would_run_nothing_is_refused(repository, reason, on_the_cpu, text, nodes, says):
    double(repository, "m", config=f"max_batch_size: 8 {text}")
    on_the_cpu[1].clear()
    on_the_cpu[1].update(nodes)
    assert says in reason("m")


def test_what_the_cpu_runs_is_told(repository, load, on_the_cpu, caplog):
    """ONNX Runtime itself says here that its CPU runs every node."""
    caplog.set_level("INFO")
    double(repository, "m", config="max_batch_size: 8")
    on_the_cpu[1].clear()
    load().find("m")
    assert "model 'm' was placed on GPU 0, and the CPU runs all of it: Add" in caplog.text
    on_the_cpu[1].update({"CUDAExecutionProvider": {"Add"}, "CPUExecutionProvider": {"opgate::DecodeImage"}})
    load().find("m")
    assert "model 'm' on GPU 1: the CPU runs opgate::DecodeImage" in caplog.text


TYPES = [
    (TensorProto.FLOAT, np.float32), (TensorProto.DOUBLE, np.float64), (TensorProto.FLOAT16, np.float16),
    (TensorProto.BOOL, np.bool_), (TensorProto.INT64, np.int64), (TensorProto.UINT8, np.uint8),
    (TensorProto.BFLOAT16, np.uint16),
]  # fmt: skip


def saved(folder, nodes, inputs, outputs):
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def test_bound_tensors_are_what_they_were(tmp_path):
    """A session with a BF16 tensor binds its tensors, as every session on a GPU does."""
    inputs, outputs, nodes = [], [], []
    for i, (code, _) in enumerate(TYPES):
        inputs.append(helper.make_tensor_value_info(f"x{i}", code, None))
        outputs.append(helper.make_tensor_value_info(f"y{i}", code, None))
        nodes.append(helper.make_node("Identity", [f"x{i}"], [f"y{i}"]))
    session = Session(saved(tmp_path, nodes, inputs, outputs), SessionOptions())
    random = np.random.default_rng(0)
    kept = []
    for shape in ((), (0,), (3, 0, 2), (5,), (3, 4), (2, 1, 70_000)):
        for turned in (False, True):
            feeds = {
                f"x{i}": random.integers(0, 2, shape).astype(dtype).T
                if turned
                else random.integers(0, 9, shape).astype(dtype)
                for i, (_, dtype) in enumerate(TYPES)
            }
            copies = [feed.copy() for feed in feeds.values()]
            kept.append((copies, session.run([f"y{i}" for i in range(len(TYPES))], feeds)))
    del session, feeds
    gc.collect()
    for copies, results in kept:
        for feed, result in zip(copies, results, strict=True):
            assert result.dtype == feed.dtype and result.shape == feed.shape
            np.testing.assert_array_equal(result, feed)


def test_an_input_that_is_an_output_stays_alive(tmp_path):
    """ONNX Runtime answers with the very value of the input, whose memory belongs to the gateway."""
    x = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.BFLOAT16, ["n"])
    session = Session(saved(tmp_path, [helper.make_node("Identity", ["x"], ["y"])], [x], [x, y]), SessionOptions())
    results = [session.run(["x", "y"], {"x": np.full(100_000, i, np.uint16)}) for i in range(20)]
    gc.collect()
    others = [np.full(100_000, 99, np.uint16) for _ in range(20)]
    assert all((array == i).all() for i, arrays in enumerate(results) for array in arrays) and len(others) == 20


def test_a_clients_mistake_stays_one(tmp_path):
    x, y = (helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [3]) for name in "xy")
    session = Session(saved(tmp_path, [helper.make_node("Identity", ["x"], ["y"])], [x], [y]), SessionOptions())
    with pytest.raises(ServingError) as error:
        session.run(["y"], {"x": np.ones(4, np.uint16)})
    assert error.value.kind is Kind.INVALID


def test_strings_beside_bf16(tmp_path):
    x, y = helper.make_tensor_value_info("x", TensorProto.STRING, ["n"]), helper.make_tensor_value_info("y", 8, ["n"])
    v, w = (helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["n"]) for name in "vw")
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["v"], ["w"])]
    session = Session(saved(tmp_path, nodes, [x, v], [y, w]), SessionOptions())
    strings, bits = np.array(["a", b"\xff\0"], np.object_), np.array([1, 2], np.uint16)
    texts, numbers = session.run(["y", "w"], {"x": strings, "v": bits})
    assert texts.tolist() == strings.tolist() and numbers.tolist() == [1, 2]


def test_the_library_of_another_device_is_found_if_it_is_trusted(tmp_path):
    entries = []
    for name, engine, devices, domain in (
        ("cpu", "onnxruntime", ["cpu"], "a"), ("cuda", "onnxruntime", ["cpu", "cuda"], "a"),
        ("plugins", "tensorrt", ["cuda"], "a"), ("other", "tensorrt", ["cuda"], "b"),
    ):  # fmt: skip
        (tmp_path / name).write_text(name)
        entries.append(
            {"file": name, "engine": engine, "devices": devices, "domain": domain, "sha256": sha256(tmp_path / name)}
        )
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 1, "libraries": entries}))
    cpu, cuda, other = (trusted_library(name, [], [tmp_path]) for name in ("cpu", "cuda", "other"))
    assert counterpart(cpu, "onnxruntime", "cuda", [tmp_path]) == cuda
    assert counterpart(cpu, "tensorrt", "cuda", [tmp_path]).path == tmp_path / "plugins"
    assert counterpart(other, "onnxruntime", "cuda", [tmp_path]) is None
    assert counterpart(cuda, "onnxruntime", "cuda", [tmp_path]) == cuda
    older = tmp_path / "older"
    older.mkdir()
    (older / "old").write_text("old")
    entry = {
        "file": "old",
        "engine": "onnxruntime",
        "devices": ["cuda"],
        "domain": "a",
        "sha256": sha256(older / "old"),
    }
    (older / "manifest.json").write_text(json.dumps({"format": 1, "libraries": [entry]}))
    assert counterpart(cpu, "onnxruntime", "cuda", [older, tmp_path]) == cuda
    (tmp_path / "plugins").write_text("changed")
    assert counterpart(cpu, "tensorrt", "cuda", [tmp_path]) is None


def test_plugins_are_loaded_only_where_the_config_asks_for_tensorrt(tmp_path):
    """Loading them needs TensorRT, which a machine with a GPU may lack."""
    entries = []
    for name, engine in (("cpu", "onnxruntime"), ("cuda", "onnxruntime"), ("plugins", "tensorrt")):
        (tmp_path / name).write_text(name)
        devices = ["cpu"] if name == "cpu" else ["cuda"]
        entries.append(
            {"file": name, "engine": engine, "devices": devices, "domain": "a", "sha256": sha256(tmp_path / name)}
        )
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 1, "libraries": entries}))

    def named(options):
        return loader._with_libraries_for_gpus(options, [trusted_library("cpu", [], [tmp_path])], [tmp_path])

    assert [library.read_text() for library in named(SessionOptions()).libraries] == ["cuda"]
    assert named(SessionOptions()).tensorrt_plugins == ()
    assert [path.read_text() for path in named(SessionOptions(tensorrt={})).tensorrt_plugins] == ["plugins"]


@pytest.mark.parametrize("content", [b"\0libnvinfer.so.11\0libnvonnxparser.so.11\0", b"", None])
def test_the_tensorrt_that_the_provider_is_linked_to_registers_the_plugins(tmp_path, monkeypatch, content):
    monkeypatch.setattr(ort, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "capi").mkdir()
    if content is not None:
        (tmp_path / "capi" / "libonnxruntime_providers_tensorrt.so").write_bytes(content)
    assert tensorrt_library() == ("libnvinfer.so.11" if content else "libnvinfer.so.10")


DRIVER = """
#include <stdlib.h>
int cuInit(unsigned flags) { (void)flags; return atoi(getenv("FAKE_ERROR")); }
int cuDeviceGetCount(int* count) { *count = atoi(getenv("FAKE_GPUS")); return 0; }
"""


def library(folder, name, source):
    (folder / "source.c").write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / name), str(folder / "source.c")], check=True)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"FAKE_ERROR": "803", "FAKE_GPUS": "1"}, "True the NVIDIA driver answered with error 803"),
        ({"FAKE_ERROR": "100", "FAKE_GPUS": "1"}, "False there is no GPU here that the NVIDIA driver shows"),
        ({"FAKE_ERROR": "0", "FAKE_GPUS": "0"}, "is CUDA_VISIBLE_DEVICES empty?"),
        ({"FAKE_ERROR": "0", "FAKE_GPUS": "2"}, "install opgate[gpu] in place of opgate[cpu]"),
    ],
)
def test_the_reason_why_no_gpu_can_be_used(tmp_path, variables, says):
    """The driver is a stand-in, because there is none here."""
    library(tmp_path, "libcuda.so.1", DRIVER)
    program = "from opgate.service.execution.gpus import *\ntry: usable_gpus()\nexcept NoGpu as error: print(error.broken, error)"
    environment = {**os.environ, **variables, "LD_LIBRARY_PATH": str(tmp_path)}
    finished = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert says in finished.stdout, finished.stdout + finished.stderr


# A library of a provider that has no device anywhere.
PROVIDER = """
#include <stddef.h>
void* CreateEpFactories(const char* name, const void* api, const void* log, void** made, size_t room, size_t* count) {
  (void)name; (void)api; (void)log; (void)made; (void)room; *count = 0; return NULL;
}
void* ReleaseEpFactory(void* factory) { (void)factory; return NULL; }
"""


def with_a_provider(tmp_path, program, provider="provider.so"):
    """Runs a program that has a driver with a GPU, which is a stand-in, and ONNX Runtime with the library of a provider."""
    library(tmp_path, "libcuda.so.1", DRIVER)
    library(tmp_path, "provider.so", PROVIDER)
    environment = {**os.environ, "FAKE_ERROR": "0", "FAKE_GPUS": "1", "LD_LIBRARY_PATH": str(tmp_path)}
    environment["OPGATE_CUDA_PROVIDER"] = str(tmp_path / provider)
    program = f"import json, sys; from opgate.service.execution import gpus, session\n{program}"
    command = [sys.executable, "-c", program, str(tmp_path)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@pytest.mark.parametrize(
    ("provider", "says"),
    [
        ("provider.so", "its provider has no device of CUDA here"),
        ("libcuda.so.1", "undefined symbol: CreateEpFactories"),
        ("nothing.so", "nothing.so: cannot open shared object file"),
    ],
)
def test_a_provider_beside_onnx_runtime_that_can_not_be_used_is_named(tmp_path, provider, says):
    program = """
found = []
for _ in range(2):
    try: gpus.usable_gpus()
    except gpus.NoGpu as error: found.append((error.broken, str(error)))
print(json.dumps(found))"""
    found = with_a_provider(tmp_path, program, provider)
    assert len(found) == 2, "the second model that is loaded hears the same"
    for broken, text in found:
        assert broken and text.startswith("OPGATE_CUDA_PROVIDER is ") and says in text


def test_a_session_runs_on_the_device_of_a_provider_beside_onnx_runtime(tmp_path):
    """The only devices here are those of ONNX Runtime's provider for the CPU."""
    double(tmp_path, "double", shape=(2,))
    program = """
gpus.CUDA_NAMES = {"CPUExecutionProvider"}
path = sys.argv[1] + "/double/1/model.onnx"
found = session.Session(path, session.SessionOptions(gpu=0))
import numpy
outputs = found.run([found.outputs[0].name], {found.inputs[0].name: numpy.float32([1, 2])}, found.run_options())
try: session.Session(path, session.SessionOptions(gpu=0, tensorrt={}))
except Exception as error: said = str(error)
providers = found._session.get_providers()
print(json.dumps([gpus.usable_gpus(), outputs[0].tolist(), providers, list(found.nodes()), said]))"""
    count, outputs, providers, nodes, said = with_a_provider(tmp_path, program)
    assert (count, outputs) == (1, [2, 4])
    assert providers == nodes == ["CPUExecutionProvider"]
    assert said == "TensorRT runs beside ONNX Runtime's own CUDA provider, and OPGATE_CUDA_PROVIDER names another"


NVML = """
#include <stdio.h>
#include <string.h>
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Rates;
static long handles[2];
static int index_of(void* gpu) { return (long*)gpu - handles; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** gpu) { *gpu = &handles[i]; return 0; }
int nvmlDeviceGetUUID(void* gpu, char* text, unsigned n) { snprintf(text, n, "GPU-%d", index_of(gpu)); return 0; }
int nvmlDeviceGetUtilizationRates(void* gpu, Rates* r) { r->gpu = 25 + 50 * index_of(gpu); r->memory = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void* gpu, Memory* m) { (void)gpu; m->total = 4096; m->free = 1024; m->used = 3072; return 0; }
int nvmlDeviceGetPowerUsage(void* gpu, unsigned* v) { (void)gpu; *v = 250500; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void* gpu, unsigned* v) { *v = 700000; return index_of(gpu) ? 3 : 0; }
int nvmlDeviceGetTotalEnergyConsumption(void* gpu, unsigned long long* v) { (void)gpu; *v = 1500; return 0; }
const char* nvmlErrorString(int code) { (void)code; return "Not Supported"; }
"""


def test_metrics_of_gpus(tmp_path):
    """NVML is a stand-in, because there is no driver here. Its second GPU has no power limit."""
    library(tmp_path, "libnvidia-ml.so.1", NVML)
    program = "from opgate.service.telemetry.metrics import Metrics; print(Metrics(lambda: []).text().decode())"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    finished = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    lines = [line for line in finished.stdout.splitlines() if "GPU-" in line]
    assert lines == [
        'nv_gpu_utilization{gpu_uuid="GPU-0"} 0.25',
        'nv_gpu_utilization{gpu_uuid="GPU-1"} 0.75',
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-0"} 4096.0',
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 4096.0',
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-0"} 3072.0',
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 3072.0',
        'nv_gpu_power_usage{gpu_uuid="GPU-0"} 250.5',
        'nv_gpu_power_usage{gpu_uuid="GPU-1"} 250.5',
        'nv_gpu_power_limit{gpu_uuid="GPU-0"} 700.0',
        'nv_energy_consumption{gpu_uuid="GPU-0"} 1.5',
        'nv_energy_consumption{gpu_uuid="GPU-1"} 1.5',
    ], finished.stderr
    assert "# TYPE nv_energy_consumption counter" in finished.stdout


def test_without_a_gpu_there_are_no_metrics_of_one():
    from opgate.service.telemetry.metrics import Metrics

    assert b"nv_gpu" not in Metrics(list).text()
