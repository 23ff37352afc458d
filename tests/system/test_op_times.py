"""How long custom ops take, as clients of a real gateway see it: metrics, the route, profiles and files of traces."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.service.onnx_models import batching, double, endless, save, value, write_config
from tests.system.conftest import PIPELINE, wait_until
from tests.system.differential import http_body
from tests.system.running import running

ISOLATED = 'parameters { key: "isolation" value { string_value: "process" } }'


def smooth(repository: Path, name: str, config: str | None = None, version: int = 1, nodes: int = 2) -> None:
    """Saves a model of some nodes of Mish, which are called m0, m1 and so on."""
    names = ["x", *(f"v{i}" for i in range(nodes - 1)), "y"]
    calls = [helper.make_node("Mish", [names[i]], [names[i + 1]], domain="opgate", name=f"m{i}") for i in range(nodes)]
    tensors = [value("x", "FP32", ["batch", 4])], [value("y", "FP32", ["batch", 4])]
    folder = save(repository, name, calls, *tensors, config=config or batching(), version=version)
    file = folder / str(version) / "model.onnx"
    model = onnx.load(file)
    model.opset_import.append(helper.make_opsetid("opgate", 1))
    onnx.save(model, file)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    smooth(repository, "smooth")
    smooth(repository, "apart", batching(extra=ISOLATED))
    double(repository, "double", config=batching(max_batch_size=16))
    write_config(repository, "pipeline", PIPELINE)
    endless(repository, "endless", batching(""))
    return repository


def explicit(*names):
    return "--model-control-mode=explicit", *(f"--load-model={name}" for name in names)


@pytest.fixture(scope="module")
def environment(library):
    return {"OPGATE_OPS_PATH": str(library.parent), "OPGATE_RUN_TIMEOUT": "3"}


@pytest.fixture(scope="module")
def server(models, environment):
    with running(models, *explicit("*"), env=environment) as started:
        yield started


def post(server, path, body=b"", **headers):
    """Returns status and content of an answer."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    request = urllib.request.Request(server.url + path, body, named, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
            return answer.status, json.loads(content) if content.startswith(b"{") else content
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def tensors(rows=1):
    return json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": [0.5] * 4 * rows}]}
    ).encode()


def infer(server, model, times=1, rows=1):
    for _ in range(times):
        status, answer = post(server, f"/v2/models/{model}/infer", tensors(rows))
        assert status == 200, answer


def ops(server, model):
    """Returns the calls of each node."""
    found = json.loads(server.get(f"/v2/models/{model}/ops"))
    assert found["name"] == model.partition("/")[0] and found["version"]
    for row in found["ops"]:
        assert row.keys() == {"op", "node", "count", "seconds", "p50", "p99"}
        assert not row["count"] or (row["seconds"] > 0 and 0 < row["p50"] <= row["p99"] <= 2.1)
    return {(row["op"], row["node"]): row["count"] for row in found["ops"]}


def counted(server, model, version="1"):
    """Returns the calls of an op as the metrics have them, None if there are none of the model."""
    name = f'opgate_op_seconds_count{{model="{model}",version="{version}",op="Mish"}} '
    found = [line for line in server.get("/metrics").splitlines() if line.startswith(name)]
    return float(found[0].removeprefix(name)) if found else None


@pytest.mark.parametrize("model", ["smooth", "apart"])
def test_calls_are_counted(server, model):
    before, in_metrics = ops(server, model), counted(server, model)
    assert before.keys() == {("Mish", "m0"), ("Mish", "m1")}
    infer(server, model, 7)
    infer(server, model, 2, rows=3)
    assert ops(server, model) == {node: count + 9 for node, count in before.items()}
    assert counted(server, model) == in_metrics + 18
    assert ops(server, f"{model}/versions/1") == ops(server, model)


def test_models_without_custom_ops_have_no_lines(server):
    infer(server, "double")
    infer(server, "pipeline")
    assert ops(server, "double") == ops(server, "pipeline") == {}
    text = server.get("/metrics")
    assert 'opgate_op_seconds_count{model="smooth"' in text and 'opgate_op_seconds_count{model="double"' not in text


def test_metrics_are_as_prometheus_wants_them(server, promtool):
    infer(server, "smooth")
    text = server.get("/metrics").encode()
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    assert b"opgate_op_seconds" not in checked.stdout + checked.stderr


@pytest.fixture
def promtool():
    import shutil

    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed")
    return found


def test_what_has_no_ops_to_show(server):
    for path, status in (("nothing", 404), ("smooth/versions/7", 404), ("smooth/versions/x", 400)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.get(f"/v2/models/{path}/ops")
        assert refused.value.code == status


@pytest.mark.parametrize("extra", ["", ISOLATED])
def test_a_reload_goes_on_counting_and_an_unload_forgets(tmp_path, environment, extra):
    smooth(tmp_path, "m", batching(extra=extra))
    with running(tmp_path, *explicit("m"), env=environment) as server:
        total = 0.0
        for _ in range(3):
            start = counted(server, "m")
            assert start == total
            infer(server, "m", 5)
            assert counted(server, "m") == start + 10
            smooth(tmp_path, "m", batching(extra=extra))  # other files, so that the load takes it anew
            os.utime(tmp_path / "m" / "1" / "model.onnx")
            total = counted(server, "m")
            assert post(server, "/v2/repository/models/m/load")[0] == 200
            assert counted(server, "m") == total and ops(server, "m") == {
                ("Mish", "m0"): total / 2,
                ("Mish", "m1"): total / 2,
            }
        wait_until(lambda: sum('"model closed"' in line for line in server.log) == 3)
        assert counted(server, "m") == total
        assert post(server, "/v2/repository/models/m/unload")[0] == 200
        assert counted(server, "m") is None
        assert post(server, "/v2/repository/models/m/load")[0] == 200
        assert counted(server, "m") == 0 and set(ops(server, "m").values()) == {0}


def test_several_gateway_processes_add_up(models, environment):
    with running(models, "--workers=2", *explicit("smooth", "apart"), env=environment) as server:
        for model in ("smooth", "apart"):
            infer(server, model, 40)  # each on a connection of its own
            assert ops(server, model) == {("Mish", "m0"): 40, ("Mish", "m1"): 40}
            assert counted(server, model) == 80


def profile(server, model, body=None, **headers):
    return post(server, f"/v2/models/{model}/profile", tensors() if body is None else body, **headers)


@pytest.mark.parametrize("model", ["smooth", "apart", "smooth/versions/1"])
def test_a_profile_has_the_operators_of_a_run(server, model):
    before = ops(server, model)
    status, answer = profile(server, model, tensors(3))
    assert status == 200, answer
    operators = answer["operators"]
    assert [(one["name"], one["op"], one["domain"], one["provider"]) for one in operators] == [
        (name, "Mish", "opgate", "CPUExecutionProvider") for name in ("m0", "m1")
    ]
    for one in operators:
        assert one["inputs"] == one["outputs"] == ["f32[3,4]"] and one["begin_us"] >= 0 <= one["duration_us"]
    assert operators[0]["begin_us"] <= operators[1]["begin_us"]
    assert ops(server, model) == before  # it runs beside what serves
    body, headers = http_body({"x": ("FP32", np.ones((2, 4), np.float32))})
    status, answer = profile(server, model, body, **headers)
    assert status == 200 and answer["operators"][0]["inputs"] == ["f32[2,4]"]


def test_the_operators_of_the_engine_are_in_a_profile(server):
    status, answer = profile(server, "double")
    assert status == 200 and [(one["op"], one["domain"]) for one in answer["operators"]] == [("Add", "")]


def test_what_can_not_be_profiled(server):
    wrong = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [0, 0, 0]}]}).encode()
    for model, body, status, text in (
        ("pipeline", None, 501, "model 'pipeline' can't be profiled: expected an ONNX file that this gateway runs"),
        ("nothing", None, 404, "'nothing' is not found"),
        ("smooth", b"{", 400, "JSON"),
        ("smooth", wrong, 400, "input 'x'"),
    ):
        found, answer = profile(server, model, body)
        assert found == status and text in answer["error"], answer
    assert profile(server, "smooth", origin="http://elsewhere")[0] == 403


def test_profiles_take_turns_and_have_a_limit(server):
    """The run of the first one never ends. The second one comes meanwhile."""
    answers = []

    def first():
        while (found := profile(server, "endless"))[0] == 503:  # the other one came first
            time.sleep(0.05)
        answers.append(found)

    thread = threading.Thread(target=first)
    thread.start()
    refused = (0, {})

    def is_refused():
        nonlocal refused
        refused = profile(server, "double")
        return refused[0] != 200

    wait_until(is_refused)
    assert refused[0] == 503 and "another request is profiled now" in refused[1]["error"]
    infer(server, "double")
    thread.join()
    ((status, answer),) = answers
    assert status == 504 and "took longer than 3 s (OPGATE_RUN_TIMEOUT" in answer["error"]
    wait_until(lambda: profile(server, "double")[0] == 200)


def test_the_console_has_the_calls_of_requests(server):
    with urllib.request.urlopen(f"{server.url}/console/stream", timeout=20) as stream:
        assert stream.readline().startswith(b"event: hello")
        for model in ("smooth", "apart"):
            infer(server, model)
    last = json.loads(server.get("/console/requests"))["requests"][:2]
    for request in last:
        assert [(call["op"], call["node"], call["inputs"]) for call in request["ops"]] == [
            ("Mish", name, ["f32[1,4]"]) for name in ("m0", "m1")
        ]
        (phase,) = [phase for phase in request["phases"] if phase["name"] == "run"]
        ends = [phase["begin_us"], *(call["begin_us"] for call in request["ops"]), phase["begin_us"] + phase["us"]]
        assert ends == sorted(ends)


def test_a_profile_leaves_no_file(models, environment, tmp_path):
    with running(models, *explicit("smooth", "apart"), env={**environment, "TMPDIR": str(tmp_path)}) as server:
        for model in ("smooth", "apart"):
            assert profile(server, model)[0] == 200
        assert [path for path in tmp_path.rglob("*") if "profile" in path.name or path.suffix == ".json"] == []


def test_a_worker_that_may_not_write_is_profiled(models, environment):
    with running(models, *explicit("apart"), "--no-isolation-writes", env=environment) as server:
        status, answer = profile(server, "apart")
        assert status == 200 and len(answer["operators"]) == 2


def test_a_profile_needs_the_token_of_its_group(models, environment):
    option = "--http-restricted-api=trace:key=secret"
    with running(models, *explicit("smooth"), option, env=environment) as server:
        assert profile(server, "smooth")[0] == 403
        assert profile(server, "smooth", key="secret", origin="http://elsewhere")[0] == 200


def test_a_file_of_traces_has_the_calls(models, environment, tmp_path):
    file = tmp_path / "traces.json"
    options = ("--trace-config", f"triton,file={file}", "--trace-config=rate=2", "--trace-config=level=TIMESTAMPS")
    with running(models, *explicit("smooth", "apart", "double"), *options, env=environment) as server:
        for model in ("smooth", "apart", "double"):
            infer(server, model, 4)
    traces = [one for one in json.loads(file.read_text()) if "timestamps" in one]
    assert len(traces) == 6
    for trace in traces[:4]:
        names = [stamp["name"] for stamp in trace["timestamps"]]
        calls = ["OP_START Mish m0", "OP_END Mish m0", "OP_START Mish m1", "OP_END Mish m1"]
        at = names.index("COMPUTE_INPUT_END") + 1
        assert names[at : at + 5] == [*calls, "COMPUTE_OUTPUT_START"]
        times = [stamp["ns"] for stamp in trace["timestamps"]]
        assert times == sorted(times)
    assert not re.search("OP_", json.dumps(traces[4:]))


def test_numbers_grow_while_requests_run(server):
    """Metrics that are read at any moment never fall."""
    ended = time.monotonic() + 2
    seen = {"smooth": [], "apart": []}
    threads = [threading.Thread(target=infer, args=(server, model, 60)) for model in seen for _ in range(2)]
    before = {model: counted(server, model) for model in seen}
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or time.monotonic() < ended:
        for model, values in seen.items():
            values.append(counted(server, model))
    for model, values in seen.items():
        assert values == sorted(values) and values[-1] <= before[model] + 240
        assert values[-1] == counted(server, model)
