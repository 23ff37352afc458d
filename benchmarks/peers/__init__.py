"""Installs the servers that the benchmarks compare the gateway with, each into an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "peers"


def environment(name: str, packages: list[str]) -> Path:
    """Returns the Python of a virtual environment that has these packages. Installs them if they are not there."""
    folder = FOLDER / name
    python, installed = folder / "bin" / "python", folder / "installed.txt"
    wanted = "\n".join(packages)
    if not installed.is_file() or installed.read_text() != wanted:
        print(f"installing {', '.join(packages)}", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        installed.write_text(wanted)
    return python


def perf_analyzer() -> tuple[Path, Path]:
    """Returns Triton's load generator, and the folder with a library that it needs.

    The last wheel of tritonclient that has it is of 2024. It needs libb64 of the system too (Debian's libb64-0d).
    """
    folder = FOLDER / "perf_analyzer"
    if not folder.is_dir():
        wheels = FOLDER / "wheels"
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels)]
        subprocess.run([*download, "tritonclient==2.50.0", "nvidia-cuda-runtime-cu12==12.4.127"], check=True)
        for name in ("tritonclient-2.50.0", "nvidia_cuda_runtime_cu12"):
            with zipfile.ZipFile(next(wheels.glob(f"{name}*.whl"))) as wheel:
                wheel.extractall(folder)
    program = folder / "tritonclient-2.50.0.data" / "data" / "bin" / "perf_analyzer"
    program.chmod(0o755)
    return program, folder / "nvidia" / "cuda_runtime" / "lib"
