"""Compiles the connection. It is in a file of its own folder, where `service.rpc.server` imports it from."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "service" / "rpc"
SOURCES = ["connection.cpp", "connection_module.cpp"]
FLAGS = ["-std=c++20", "-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> None:
    """Compiles before the first test module of this folder is imported."""
    if file_path.parent == Path(__file__).parent and file_path.name.startswith("test_"):
        compile_connection()


def compile_connection() -> None:
    """Compiles the module unless it is up to date."""
    target = FOLDER / ("connection" + str(sysconfig.get_config_var("EXT_SUFFIX")))
    newest = max(path.stat().st_mtime for path in FOLDER.iterdir() if path.suffix in (".h", ".cpp"))
    if target.exists() and target.stat().st_mtime > newest:
        return
    include = f"-I{sysconfig.get_path('include')}"
    sources = [str(FOLDER / source) for source in SOURCES]
    subprocess.run(["g++", *FLAGS, include, *sources, "-o", str(target), "-lnghttp2"], check=True)
