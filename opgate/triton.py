"""Starts the Triton server that the package nvidia-pytriton carries, without Docker and without a GPU.

That package has the server, its HTTP and gRPC endpoints, scheduler and ensembles, and the backend for Python. Models
for ONNX Runtime are served by `triton_onnxruntime.py`, a backend in Python that stands in for Triton's own.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

SERVER = Path("pytriton") / "tritonserver"


def prepare(package: Path, folder: Path) -> Path:
    """Makes the folder of backends from an unpacked nvidia-pytriton, and returns it.

    Raises FileNotFoundError if the package has no server, or nothing for this version of Python.
    """
    server = package / SERVER
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    for path in (server / "bin" / "tritonserver", stub):
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: unpack the wheel of nvidia-pytriton for Python {version}")
        path.chmod(0o755)
    python = folder / "backends" / "python"
    python.mkdir(parents=True, exist_ok=True)
    # The server refuses links to these files.
    for file in (server / "backends" / "python").iterdir():
        if file.is_file():
            shutil.copy(file, python)
    shutil.copy(stub, python)
    onnxruntime = folder / "backends" / "onnxruntime"
    onnxruntime.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).with_name("triton_onnxruntime.py"), onnxruntime / "model.py")
    return folder / "backends"


def command(package: Path, backends: Path, repository: Path, http_port: int, grpc_port: int) -> list[str]:
    """Returns the command line of the server. Its models must state their inputs and outputs."""
    return [
        str(package / SERVER / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        "--allow-metrics=false",
        "--disable-auto-complete-config",
        "--log-info=false",
    ]


def environment(package: Path, site_packages: Path) -> dict[str, str]:
    """Returns the environment of the server. `site_packages` has NumPy 1 and onnxruntime for its backend in Python."""
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(package / "nvidia_pytriton.libs"),
        "PYTHONPATH": str(site_packages),
    }
