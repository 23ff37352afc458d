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


def triton() -> tuple[Path, Path]:
    """Returns the folder of an unpacked nvidia-pytriton, and the packages that its backend in Python needs."""
    python = environment("triton", ["numpy<2", "onnxruntime"])
    package = FOLDER / "nvidia_pytriton"
    if not package.is_dir():
        wheels = FOLDER / "wheels"
        # Its dependencies would not fit into any other environment, and its server needs none of them.
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels)]
        subprocess.run([*download, "nvidia-pytriton==0.7.0"], check=True)
        with zipfile.ZipFile(next(wheels.glob("nvidia_pytriton-*.whl"))) as wheel:
            wheel.extractall(package)
    site = python.parent.parent / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    return package, site
