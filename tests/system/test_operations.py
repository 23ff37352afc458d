"""Runs the commands of docs/operations.md as the page has them, but for those whose block needs what isn't here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opgate import triton
from tests.conftest import thorough
from tests.system.differential import http_body
from tests.system.running import ROOT, running
from tests.system.stack import Stack, missing, stack

PAGE = (ROOT / "docs" / "operations.md").read_text()
BINARIES = Path(sys.executable).parent
#: What a block may need that isn't here, as the text before it says it.
ELSEWHERE = ("Needs Docker", "Needs root and systemd")


def blocks() -> Iterator[tuple[str, list[str]]]:
    """Yields the text of the section before each block of commands, and the commands without comments."""
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE):
        for found in re.finditer(r"```sh\n(.*?)```", section, re.DOTALL):
            lines = [re.split(r"\s{2,}#", line)[0].strip() for line in found[1].splitlines()]
            yield section[: found.start()], [line for line in lines if line]


def runnable() -> list[str]:
    return [line for text, lines in blocks() if not any(need in text for need in ELSEWHERE) for line in lines]


def environment() -> dict[str, str]:
    """Returns the variables of this process, without those that `make test` gives to every make below it."""
    makes = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARGS")
    return {name: value for name, value in os.environ.items() if name not in makes}


def here(line: str) -> str:
    """Returns a command with the programs of this interpreter instead of the virtual environment's."""
    line = line.replace(".venv/bin/", f"{BINARIES}/")
    return (
        line.replace("make ", f"make -o .venv/.load BIN={BINARIES} DURATION=3s ") if line.startswith("make ") else line
    )


def test_every_command_is_known() -> None:
    """A new command needs a test here, or a block that says what it needs."""
    tested = {"promtool test rules deploy/prometheus/alerts_test.yml", *LOAD, *TRITON}
    assert set(runnable()) == tested
    elsewhere = [line for text, lines in blocks() if any(need in text for need in ELSEWHERE) for line in lines]
    assert elsewhere and not [
        line for line in elsewhere if not re.match(r"(\w+=\S+ )*(docker|python3|mkdir|cp) ", line)
    ]


def test_the_tests_of_the_alerts() -> None:
    (line,) = [line for line in runnable() if line.startswith("promtool")]
    finished = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True)
    if finished.returncode == 127:
        pytest.skip("promtool is not installed")
    assert finished.returncode == 0 and "SUCCESS" in finished.stdout, finished.stdout + finished.stderr


LOAD = ("make load-test", 'make load-test ARGS="--max-p99-ms 300 --min-rps 100"')


@pytest.mark.parametrize("line", LOAD)
def test_the_load_tests(line: str, library: Path, tmp_path: Path) -> None:
    for name in ("Makefile", "deploy", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    with running(ROOT / "model_repository") as server:
        where = f" HOST={server.url} GRPC_HOST=127.0.0.1:{server.grpc}"
        finished = subprocess.run(
            here(line) + where, shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120
        )
    # On a busy machine a threshold may be violated. Then the exit status must say so.
    violated = "threshold violated" in finished.stderr
    assert finished.returncode == (2 if violated else 0), finished.stdout + finished.stderr
    assert not violated or "ARGS" in line
    assert (tmp_path / "build" / "load-test" / "report.html").stat().st_size > 10_000


TRITON = (".venv/bin/opgate triton", ".venv/bin/opgate serve --backend triton --triton-url 127.0.0.1:8011")


def wait_for(services: Stack, process: subprocess.Popen[str], url: str) -> None:
    end = time.monotonic() + 300  # Triton has 120 s, and a busy machine more than one of them at work
    while not services.answers(url):
        assert process.poll() is None and time.monotonic() < end, url
        time.sleep(0.2)


def infer(url: str) -> list[float]:
    import numpy as np

    body, headers = http_body({name: ("FP32", np.ones((1, 4), np.float32)) for name in "ab"})
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer:
        content = answer.read()
        json_size = answer.headers.get("Inference-Header-Content-Length")
    head: dict[str, Any] = json.loads(content[: int(json_size)] if json_size else content)
    if json_size:
        return list(np.frombuffer(content[int(json_size) :], np.float32))
    return list(head["outputs"][0]["data"])


@thorough("tests/system/test_triton.py sends requests through the gateway too")
def test_triton_and_the_gateway_in_front_of_it(library: Path, tmp_path: Path) -> None:
    """In a network of their own, because the page names the usual ports. The server is installed beforehand."""
    if reason := missing():
        pytest.skip(f"no network of its own: {reason}")
    triton.install(ROOT / "build" / "triton", print)
    (tmp_path / "opgate").mkdir()
    (tmp_path / "opgate" / f"triton-{triton.PACKAGE}").symlink_to(ROOT / "build" / "triton")
    variables = {**environment(), "XDG_CACHE_HOME": str(tmp_path)}
    processes: list[subprocess.Popen[str]] = []
    with stack({}, {}) as services:
        try:
            for line, port in zip(TRITON, (8010, 8000), strict=True):
                assert line in runnable()
                command = f"exec {here(line)}"
                started = services.call(subprocess.Popen, command, shell=True, cwd=ROOT, env=variables, text=True)
                processes.append(started)
                wait_for(services, processes[-1], f"http://127.0.0.1:{port}/v2/health/ready")
                answer = services.call(infer, f"http://127.0.0.1:{port}/v2/models/my_add/infer")
                assert answer == [3.0] * 4
        finally:
            for process in reversed(processes):
                process.send_signal(signal.SIGTERM)
            statuses = [process.wait(60) for process in reversed(processes)]
    assert statuses == [0, 0]
