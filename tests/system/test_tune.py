"""`opgate tune` as a command: what it prints, the config that it writes, and that a gateway serves with it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from google.protobuf import text_format
from PIL import Image
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tests.conftest import thorough
from tests.service.onnx_models import batching, double, write_config
from tests.service.stateful_models import accumulator
from tests.system.running import running


def tune(*arguments: str, repository: Path, output: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "opgate", "tune", *arguments, "--model-repository", str(repository)]
    command += ["--output", str(output), "--duration", "2"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@thorough("it measures for a minute")
def test_it_proposes_a_config_and_checks_it(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    double(repository, "m", config=batching(max_batch_size=4), shape=("batch", 3, 64, 64))
    finished = tune("m", "--slo", "p90=150ms", "--rate", "5000", repository=repository, output=tmp_path / "tuned")
    facts = json.loads((tmp_path / "tuned" / "tune.json").read_text())
    kept = not facts["checks"][-1]["miss"]
    assert finished.returncode == (0 if kept else 1), finished.stderr
    assert facts["slo"] == {"percentile": 90.0, "ms": 150.0}
    # Batches of 1, 2 and 4 rows in each pair of instances and threads.
    assert {run["rows"] for run in facts["runs"]} == {1, 2, 4}
    assert all(run["ms"] > 0 and run["at_once"] * run["threads"] <= facts["cores"] for run in facts["runs"])
    rates = [candidate["rate"] for candidate in facts["candidates"]]
    assert facts["chosen"]["rate"] >= 0.9 * max(rates) > 0
    for check in facts["checks"]:
        assert check["miss"] or check["measured"]["answers"] > 0
        assert check["miss"] or not check["measured"]["failed"]
        error = check["simulated_ms"]["p90"] / check["measured"]["latency_ms"]["p90"] - 1
        assert check["simulation_error"]["p90"] == pytest.approx(error)
    if kept:
        (gateways,) = facts["gateways"]
        needed = 5000 / (0.8 * facts["checks"][-1]["rate"])
        assert gateways["rate"] == 5000 and needed <= gateways["count"] < needed + 1
        assert f"{gateways['count']:,} gateway" in finished.stdout
    assert Image.open(tmp_path / "tuned" / "tune.png").size == (1700, 520)
    proposed = (tmp_path / "tuned" / "config.pbtxt").read_text()
    config = text_format.Parse(proposed, ModelConfig())
    assert config.instance_group[0].count == facts["chosen"]["instances"]
    assert config.parameters["intra_op_thread_count"].string_value == str(facts["chosen"]["threads"])
    (repository / "m" / "config.pbtxt").write_text(proposed)
    with running(repository) as server:
        assert json.loads(server.get("/v2/models/m/config"))["max_batch_size"] == 4


@pytest.mark.parametrize(
    "strategy",
    [
        "oldest { max_candidate_sequences: 64 }",
        pytest.param("direct { }", marks=thorough("it measures for 20 seconds")),
    ],
)
def test_sequences_are_tuned(tmp_path: Path, strategy: str) -> None:
    """The load has sequences, the setups are those of the batcher, and the proposed config keeps the sums of one."""
    repository = tmp_path / "models"
    accumulator(repository, "m", strategy, max_batch_size=2, instances=3)
    arguments = ("m", "--slo", "p90=500ms", "--sequence-length", "4")
    finished = tune(*arguments, repository=repository, output=tmp_path / "tuned")
    assert "rates that keep p90 under 500 ms" in finished.stdout, finished.stderr
    facts = json.loads((tmp_path / "tuned" / "tune.json").read_text())
    assert (facts["sequence_length"], facts["rows"]) == (4, 1)
    assert {run["rows"] for run in facts["runs"]} == {1, 2}
    for check in facts["checks"]:
        assert check["measured"]["answers"] > 0
        assert check["miss"] or not check["measured"]["failed"]
    direct = strategy.startswith("direct")
    batchings = {candidate["batching"] for candidate in facts["candidates"]}
    assert batchings == ({"delay"} if direct else {"none", "adaptive", "delay"})
    proposed = (tmp_path / "tuned" / "config.pbtxt").read_text()
    config = text_format.Parse(proposed, ModelConfig())
    assert config.instance_group[0].count == (3 if direct else facts["chosen"]["instances"])
    assert config.sequence_batching.HasField("direct" if direct else "oldest")
    (repository / "m" / "config.pbtxt").write_text(proposed)
    with running(repository) as server:
        for place, x in enumerate((1.0, 2.0, 4.0)):
            inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [x]}]
            parameters = {"sequence_id": 7, "sequence_start": place == 0, "sequence_end": place == 2}
            body = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
            with urllib.request.urlopen(f"{server.url}/v2/models/m/infer", body) as response:
                answer = json.load(response)
            sums = {output["name"]: output["data"] for output in answer["outputs"]}
            assert sums["sum"] == [[1.0], [3.0], [7.0]][place]


def test_a_latency_that_nothing_keeps_is_said(tmp_path: Path) -> None:
    double(tmp_path, "m", config=batching(max_batch_size=4))
    finished = tune("m", "--slo", "p99=1us", repository=tmp_path, output=tmp_path / "tuned")
    assert finished.returncode == 1
    assert "no configuration keeps p99 under 1.00 us on this machine: a run and its way take" in finished.stderr
    assert not (tmp_path / "tuned").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("none", "--slo", "p99=1ms"), 1, "there is no model 'none' in"),
        (("m", "--slo", "fast"), 2, "expected a percentile and a time in s, ms or us, such as p99=20ms, got 'fast'"),
        (("ensemble", "--slo", "p99=1ms"), 1, "'ensemble' is an ensemble: tune the models of its steps, m"),
        (("m", "--slo", "p99=1ms", "--version", "7"), 1, "model 'm' has the versions 1, got '7'"),
        (("m", "--slo", "p99=1ms", "--shape", "y=3"), 1, "model 'm' has no input 'y', its inputs are 'x'"),
        (("sums", "--slo", "p99=1ms", "--batch", "2"), 1, "'sums' has sequences: expected a batch size of 1, got 2"),
        (("free", "--slo", "p99=1ms"), 1, "input 'x' has the variable shape [-1, -1]: give --shape x=8,8"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, arguments: tuple[str, ...], status: int, said: str) -> None:
    double(tmp_path, "m", config='backend: "onnxruntime"', shape=(4,))
    double(tmp_path, "free", config='backend: "onnxruntime"', shape=("a", "b"))
    accumulator(tmp_path, "sums", "oldest { max_candidate_sequences: 4 }")
    write_config(tmp_path, "ensemble", 'platform: "ensemble" ensemble_scheduling { step { model_name: "m" } }')
    finished = tune(*arguments, repository=tmp_path, output=tmp_path / "tuned")
    assert finished.returncode == status
    assert said in " ".join(finished.stderr.replace("│", " ").split())
