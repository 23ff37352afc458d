"""Ops whose kernel is the NumPy function of their op.py: nothing is compiled, and they work in every engine."""

from __future__ import annotations

import logging
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import opgate.numpy
from opgate.ops_build.building.build import build
from opgate.ops_build.building.options import DEFAULT_OUTPUT, BuildError, out_of_tree
from opgate.ops_build.op_table import read_table
from opgate.ops_build.python_ops.embedded import embedded_ops
from opgate.ops_build.verification.sources import adapters_of
from opgate.ops_build.verification.supervision import supervised
from opgate.ops_build.verification.verify import verify
from tests.conftest import silent
from tests.system.running import running

OPS = Path(__file__).parent / "numpy_ops"
#: What Risky does, and what is said of it.
FAILURES = {
    "raise": r"numpy_ops/risky/op\.py:46: ZeroDivisionError: integer division or modulo by zero",
    "shape": r"numpy_ops/risky/op\.py:12: ValueError: output 'y': expected the shape \[3\], got \[1\]",
    "keep": r"numpy_ops/risky/op\.py:12: the function keeps an input after the call: keep a copy, x\.copy\(\)",
    "write": r"numpy_ops/risky/op\.py:26: ValueError: assignment destination is read-only",
    "exit": r"numpy_ops/risky/op\.py:28: SystemExit: 3",
    "none": r"numpy_ops/risky/op\.py:12: TypeError: output 'y': expected an array of numbers, got None",
    "two": r"numpy_ops/risky/op\.py:12: TypeError: expected 1 arrays, y, got 2",
    "texts": r"numpy_ops/risky/op\.py:12: TypeError: output 'y': expected an array of numbers, got array\(\['a'",
}
#: A program without Python that calls an op, as op_call/packed_attributes.h and adapters/numpy/run.cpp have it.
WITHOUT_PYTHON = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
typedef int (*Run)(const char*, const char*, size_t, void*, void*);
typedef const char* (*Message)(void);
struct Array { int two, rank; char kind; int size, flags; intptr_t *dims, *strides; void* data; };
static float one[1];
static intptr_t dims[1] = {1};
static struct Array array = {2, 1, 'f', 4, 0, dims, 0, one};
static const void* allocate(void* user, int64_t o, int64_t t, int64_t r, const int64_t* d) { return &array; }
int main(int count, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW);
  if (!library) return puts(dlerror()), 1;
  Run run = (Run)dlsym(library, "opgate_run");
  Message message = (Message)dlsym(library, "opgate_run_message");
  char call[100] = {0}, *at = call;
  uint64_t wanted = 1, dtype = 2, none = 0;
  uint32_t threads = 1, inputs = 1, attributes = 0;
  const void* address = &array;
#define PUT(value) memcpy(at, &value, sizeof value), at += sizeof value
  PUT(wanted); PUT(threads); PUT(inputs); PUT(dtype); PUT(address); PUT(none); PUT(attributes);
  int status = run("Risky", call, at - call, (void*)allocate, 0);
  printf("%d %s\n", status, message());
}
"""


@pytest.fixture(scope="session")
def options(library):
    options = replace(
        out_of_tree(OPS, DEFAULT_OUTPUT.parent / "numpy_ops"), engines=("onnxruntime", "torch", "tensorflow"), cuda=""
    )
    build(options, silent)
    return options


@pytest.fixture(scope="session")
def functions(options):
    return opgate.numpy.load(options.library())


def post(server, path: str, body: dict) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=30)


def risky(what: str) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    node = helper.make_node("Risky", ["x"], ["y"], domain="numpy_ops", what=what)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("numpy_ops", 1)]
    return helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=10)


def session(options, model: onnx.ModelProto, **entries: int) -> ort.InferenceSession:
    of_session = ort.SessionOptions()
    of_session.log_severity_level = 4
    for name, value in entries.items():
        setattr(of_session, name, value)
    of_session.register_custom_ops_library(str(options.library()))
    return ort.InferenceSession(model.SerializeToString(), of_session, providers=["CPUExecutionProvider"])


def test_every_case_in_every_engine(options):
    with supervised(adapters_of(options)) as engines:
        cells = verify(read_table(options.library()), [OPS], engines)
    assert [failure for cell in cells for failure in cell.failures] == []
    passed = {
        engine: sum(cell.passed for cell in cells if cell.engine == engine)
        for engine in ("onnxruntime cpu", "torch cpu", "tensorflow cpu")
    }
    assert passed["onnxruntime cpu"] >= 75 and min(passed.values()) >= 70, passed


def test_nothing_is_compiled(options, tmp_path):
    """Libraries of two folders differ in what stands behind their end alone."""
    other = tmp_path / "other_ops" / "risky"
    other.mkdir(parents=True)
    (other / "op.py").write_text((OPS / "risky" / "op.py").read_text())
    others = replace(out_of_tree(other.parent), engines=("onnxruntime",), cuda="")
    lines: list[str] = []
    built = build(others, lines.append).libraries["onnxruntime"].read_bytes()
    assert any("nothing of it is compiled" in line for line in lines) and not (others.output / "cmake").exists()
    mine = options.library().read_bytes()
    assert [op.file for op in embedded_ops(built)] == ["other_ops/risky/op.py"]
    assert built[:400_000] == mine[:400_000]


def test_an_op_in_cpp_and_one_in_python_share_a_library(library, tmp_path):
    for name, text in {"scaled": "scaled.formula()", "plain": ""}.items():
        (tmp_path / "both" / name).mkdir(parents=True)
        (tmp_path / "both" / name / "op.py").write_text(
            f'import opgate\n@opgate.op("<T: f32> {name.title()}(x: T[...]) -> (y: T[...])", "Twice.")\n'
            f"def {name}(x):\n    return 2 * x\n{text}\n"
        )
    options = replace(out_of_tree(tmp_path / "both"), engines=("onnxruntime",), cuda="")
    built = build(options, silent).libraries["onnxruntime"]
    assert [op.signature.split("(")[0] for op in embedded_ops(built.read_bytes())] == ["<T: f32> Plain"]
    ops = opgate.numpy.load(built)
    assert ops.plain(np.ones(2, "f4")).tolist() == ops.scaled(np.ones(2, "f4")).tolist() == [2, 2]


@pytest.mark.parametrize("what", FAILURES)
def test_what_goes_wrong_tells_the_author_the_line(options, functions, what, monkeypatch):
    x, log = np.arange(3, dtype=np.float32), []
    logger = logging.getLogger("opgate.ops")  # the gateway's tests may have given it another place to go
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logger, "isEnabledFor", lambda level: True)
    monkeypatch.setattr(logger, "handle", log.append)
    with pytest.raises(RuntimeError, match="numpy_ops::Risky: .*" + FAILURES[what]):
        functions.risky(x, what=what)
    with pytest.raises(Exception, match=FAILURES[what]):
        session(options, risky(what)).run(None, {"x": x})
    assert functions.risky(x).tolist() == [1, 2, 3]  # the next call is not affected
    if what == "raise":
        (record, *_) = log  # the lines of the traceback are those of the library's own copy
        assert "return helper(x)" in logging.Formatter().format(record)


def test_an_invalid_argument_is_the_mistake_of_the_caller(options, functions):
    x = np.arange(3, dtype=np.float32)
    with pytest.raises(ValueError, match=r"^numpy_ops::Risky: x is too small: 0\.0$"):
        functions.risky(x, what="refuse")
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT.*x is too small"):
        session(options, risky("refuse")).run(None, {"x": x})


def test_a_cycle_that_nobody_has_keeps_nothing(functions):
    assert functions.risky(np.ones(3, "f4"), what="cycle").tolist() == [2, 2, 2]


def test_threads_at_once(options):
    """Threads of ONNX Runtime that Python doesn't know, and threads of Python."""
    run = session(options, risky("add"), intra_op_num_threads=4)

    def ask(number: int) -> bool:
        x = np.full(1000, number, np.float32)
        return all((run.run(None, {"x": x})[0] == number + 1).all() for _ in range(20))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(16)))


def test_torch_differentiates_compiles_and_exports(options):
    torch = pytest.importorskip("torch")
    import opgate.torch

    ops = opgate.torch.load(options.library("torch"))
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    scale = torch.rand(3, dtype=torch.float64).add(1).requires_grad_()
    torch.autograd.gradcheck(lambda a, b: ops.row_scale(a, b, power=2.0), (x, scale))
    torch.library.opcheck(torch.ops.numpy_ops.row_scale.default, (x, scale), {"power": 2.0})
    torch.library.opcheck(torch.ops.numpy_ops.runs.default, (torch.tensor([1, 1, 2]),))
    compiled = torch.compile(lambda a, b: ops.row_scale(a, b)[0].sin(), fullgraph=True)
    assert torch.allclose(compiled(x, scale), ops.row_scale(x, scale)[0].sin())
    compiled(x, scale).sum().backward()
    assert torch.isfinite(x.grad).all()

    class Model(torch.nn.Module):
        def forward(self, a, b):
            return ops.clamp_add(a, b, high=2)

    a = torch.arange(4)[None].to(torch.int32)
    assert torch.export.export(Model(), (a, a)).module()(a, a).tolist() == [[0, 2, 2, 2]]


def test_tensorflow_differentiates(options):
    tf = pytest.importorskip("tensorflow")
    import opgate.tensorflow

    ops = opgate.tensorflow.load(options.library("tensorflow"))
    x, scale = tf.ones([2, 3], tf.float64), tf.constant([1.0, 2.0, 3.0], tf.float64)

    @tf.function
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, _ = ops.row_scale(x, scale, power=2.0)
        return tape.gradient(y, x)

    assert slope(x).numpy().tolist() == [[1, 4, 9]] * 2


def test_a_process_without_python_says_so(options, tmp_path):
    (tmp_path / "host.c").write_text(WITHOUT_PYTHON)
    program = tmp_path / "host"
    subprocess.run(["gcc", "-o", str(program), str(tmp_path / "host.c"), "-ldl"], check=True)
    done = subprocess.run([str(program), str(options.library())], capture_output=True, text=True)
    assert done.stdout.startswith("2 numpy_ops::Risky: "), done
    assert "a function in Python, and this process has no interpreter" in done.stdout


def test_a_wrong_gradient_is_refused(library, tmp_path):
    text = (OPS / "row_scale" / "op.py").read_text().replace("return g * scale**power,", "return g * scale,")
    (tmp_path / "wrong" / "row_scale").mkdir(parents=True)
    (tmp_path / "wrong" / "row_scale" / "op.py").write_text(text)
    options = replace(out_of_tree(tmp_path / "wrong"), engines=("onnxruntime",), cuda="")
    build(options, silent)
    with supervised(adapters_of(options)) as engines:
        cells = verify(read_table(options.library()), [tmp_path / "wrong"], engines)
    failures = [failure for cell in cells for failure in cell.failures]
    assert failures and all("the gradient of 'x' is no slope of RowScale" in str(failure) for failure in failures)


def test_a_case_states_what_is_known(library, tmp_path):
    """An op that is held to itself alone would pass with anything. One broken op leaves the others their turn."""
    texts = {
        "right": "return np.sort(x)",
        "wrong": "return -np.sort(x)",
        "halves": "return x + 0.5",
        "unstated": "return x",
    }
    for name, body in texts.items():
        (tmp_path / "stated" / name).mkdir(parents=True)
        expected = '{"z": [1]}' if name == "unstated" else '{"y": [1, 2, 3]}'
        cases = f'    yield opgate.Case("three", {{"x": np.array([3, 1, 2])}}, expected={expected})\n'
        (tmp_path / "stated" / name / "op.py").write_text(
            f'import numpy as np\nimport opgate\n@opgate.op("{name.title()}(x: i64[n]) -> (y: i64[n])")\n'
            f"def {name}(x):\n    {body}\n\n@{name}.cases\ndef _(types):\n{cases}"
        )
    (tmp_path / "stated" / "bare").mkdir()
    (tmp_path / "stated" / "bare" / "op.py").write_text(
        'import opgate\n@opgate.op("Bare(x: i64[n]) -> (y: i64[n])")\ndef bare(x):\n    return x\n'
    )
    options = replace(out_of_tree(tmp_path / "stated"), engines=("onnxruntime",), cuda="")
    build(options, silent)
    with supervised(adapters_of(options)) as engines:
        cells = verify(read_table(options.library()), options.ops, engines)
    failures = {cell.op: "".join(cell.failures) for cell in cells if cell.failures}
    assert failures.keys() == {"Bare", "Halves", "Unstated", "Wrong"}
    assert "output 'y' is not what the case states: 3 of 3 elements differ" in failures["Wrong"]
    assert "the case expects 'z', which is no output" in failures["Unstated"]
    assert "output 'y': expected integers, got 3.5: round, or state a float dtype" in failures["Halves"]
    assert "Bare has no cases, and none can be made up" in failures["Bare"]


def test_what_a_gradient_can_not_be(library, tmp_path):
    def built(text: str) -> None:
        folder = tmp_path / "bad" / "op_x"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "op.py").write_text("import opgate\n" + text)
        build(replace(out_of_tree(tmp_path / "bad"), engines=("onnxruntime",), cuda=""), silent)

    with pytest.raises(BuildError, match=r"op\.py:6: a gradient takes grad_y, x, y, and there is no z"):
        built(
            '@opgate.op("OpX(x: f32[n]) -> (y: f32[n])")\ndef op_x(x):\n    return x\n\n@op_x.gradient\ndef _(grad_y, z):\n    return z\n'
        )
    with pytest.raises(BuildError, match=r"op\.py:6: an input that is a list of tensors has no gradient"):
        built(
            '@opgate.op("OpX(xs*: f32[n]) -> (y: f32[n])")\ndef op_x(xs):\n    return xs[0]\n\n@op_x.gradient\ndef _(grad_y):\n    return grad_y\n'
        )


def test_the_gateway_serves_them_in_workers_where_it_is_allowed(options, tmp_path):
    for what in ("add", "raise", "refuse", "abort"):
        (tmp_path / what / "1").mkdir(parents=True)
        onnx.save(risky(what), tmp_path / what / "1" / "model.onnx")
    environment = {"OPGATE_OPS_PATH": str(options.output), "OPGATE_STRICT_READINESS": "false"}
    body = {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}
    with running(tmp_path, env=environment) as server:
        refused = post(server, "/v2/models/add/infer", body)
        assert refused.status_code == 503 and "only with --allow-python-ops" in "".join(server.log)
    with running(tmp_path, "--allow-python-ops", env=environment) as server:
        answers = {what: post(server, f"/v2/models/{what}/infer", body) for what in ("add", "raise", "refuse", "abort")}
        assert answers["add"].json()["outputs"][0]["data"] == [2, 3]
        assert answers["refuse"].status_code == 400 and "x is too small: 1.0" in answers["refuse"].text
        assert answers["raise"].status_code == 500 and "the server's log says why" in answers["raise"].text
        assert "ZeroDivision" not in answers["raise"].text and "op.py:46: ZeroDivisionError" in "".join(server.log)
        assert answers["abort"].status_code == 500 and "Risky" in answers["abort"].text
        assert post(server, "/v2/models/add/infer", body).status_code == 200


def test_requests_share_a_batch_and_one_that_never_ends_is_ended(options, tmp_path):
    """A function that loops has the time limit of a run. Its process is another's no longer, and the model comes back."""
    node = helper.make_node("ClampAdd", ["a", "b"], ["y"], domain="numpy_ops", high=5)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "aby"]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("numpy_ops", 1)]
    model = helper.make_model(
        helper.make_graph([node], "g", values[:2], values[2:]), opset_imports=opsets, ir_version=10
    )
    for name, made in {"sums": model, "loops": risky("loop")}.items():
        (tmp_path / name / "1").mkdir(parents=True)
        onnx.save(made, tmp_path / name / "1" / "model.onnx")
    delay = "dynamic_batching { max_queue_delay_microseconds: 200000 preferred_batch_size: [ 4 ] }"
    (tmp_path / "sums" / "config.pbtxt").write_text(f"max_batch_size: 4 {delay}")
    environment = {"OPGATE_OPS_PATH": str(options.output), "OPGATE_RUN_TIMEOUT": "2"}
    with running(tmp_path, "--allow-python-ops", env=environment) as server:

        def ask(number: int) -> list[float]:
            tensor = {"shape": [1, 2], "datatype": "FP32", "data": [number, number]}
            body = {"inputs": [{"name": name, **tensor} for name in "ab"]}
            return post(server, "/v2/models/sums/infer", body).json()["outputs"][0]["data"]

        with ThreadPoolExecutor(4) as clients:
            assert list(clients.map(ask, range(4))) == [[0, 0], [2, 2], [4, 4], [5, 5]]
        assert server.metric("nv_inference_exec_count", "sums") < 4
        x = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
        ended = post(server, "/v2/models/loops/infer", x)
        assert ended.status_code in (500, 503, 504) and "2" in ended.text, ended.text
        assert ask(1) == [2, 2]
