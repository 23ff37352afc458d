"""NVIDIA's load generator against the gateway, over both protocols."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from benchmarks import peers
from opgate.service.api.kserve_grpc import SERVICE


@pytest.fixture(scope="module")
def perf_analyzer():
    try:
        program, libraries = peers.perf_analyzer()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"perf_analyzer can't be downloaded: {error}")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    tried = subprocess.run([program, "--version"], env=environment, capture_output=True, text=True)
    if "error while loading shared libraries" in tried.stderr:
        pytest.skip(f"perf_analyzer lacks a library: {tried.stderr.strip()}")
    return program, environment


SHARED = ["--shared-memory", "system"]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("double", ["-b", "4"]),
        ("plain", ["--shape", "x:3,5"]),
        ("double", ["-b", "4", *SHARED]),
        ("plain", ["--shape", "x:3,5", *SHARED, "--output-shared-memory-size", "60"]),
        ("large", [*SHARED, "--output-shared-memory-size", "700000"]),
        ("identity_BYTES", ["--string-length", "5", *SHARED]),
    ],
)
def test_it_completes(perf_analyzer, server, protocol, model, options):
    program, environment = perf_analyzer
    address = f"127.0.0.1:{server.http if protocol == 'http' else server.grpc}"
    fixed = [
        "--concurrency-range",
        "4",
        "--measurement-interval",
        "500",
        "--max-trials",
        "20",  # three in a row count, and a busy machine may answer nothing in one of 500 ms
        "--stability-percentage",
        "999",
    ]
    command = [program, "-m", model, "-i", protocol, "-u", address, *fixed, *options]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert float(re.findall(r"throughput: ([0-9.]+) infer/sec", ended.stdout)[-1]) > 0
    # It reads the counters of the server before and after each measurement.
    assert re.search(r"Inference count: [1-9]", ended.stdout), ended.stdout
    if "--shared-memory" in options:
        route = {
            "http": "/v2/systemsharedmemory/region/{region}/register",
            "grpc": f"/{SERVICE}/SystemSharedMemoryRegister",
        }
        registered = re.search(
            rf'opgate_responses_total{{.*"{re.escape(route[protocol])}"}} [1-9]', server.get("/metrics")
        )
        assert registered


@pytest.mark.parametrize("options", [["-b", "4"], ["--shared-memory", "system"]])
def test_it_streams(perf_analyzer, server, options):
    program, environment = perf_analyzer
    fixed = ["--streaming", "--concurrency-range", "4", "--measurement-interval", "500", "--max-trials", "20"]
    command = [program, "-m", "double", "-i", "grpc", "-u", f"127.0.0.1:{server.grpc}", *fixed, *options]
    ended = subprocess.run(
        [*command, "--stability-percentage", "999"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert float(re.findall(r"throughput: ([0-9.]+) infer/sec", ended.stdout)[-1]) > 0
    counted = re.search(
        rf'opgate_responses_total{{code="OK",protocol="grpc",route="/{SERVICE}/ModelStreamInfer"}} (.*)',
        server.get("/metrics"),
    )
    assert counted and float(counted[1]) > 10
