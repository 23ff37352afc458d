"""`opgate tune` as a command: what it prints, the config that it writes, and that a gateway serves with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format
from PIL import Image
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tests.conftest import thorough
from tests.service.onnx_models import batching, double, write_config
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
        assert check["measured"]["answers"] > 0
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
        (("free", "--slo", "p99=1ms"), 1, "input 'x' has the variable shape [-1, -1]: give --shape x=8,8"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, arguments: tuple[str, ...], status: int, said: str) -> None:
    double(tmp_path, "m", config='backend: "onnxruntime"', shape=(4,))
    double(tmp_path, "free", config='backend: "onnxruntime"', shape=("a", "b"))
    write_config(tmp_path, "ensemble", 'platform: "ensemble" ensemble_scheduling { step { model_name: "m" } }')
    finished = tune(*arguments, repository=tmp_path, output=tmp_path / "tuned")
    assert finished.returncode == status
    assert said in " ".join(finished.stderr.replace("│", " ").split())
