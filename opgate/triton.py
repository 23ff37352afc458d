"""The Triton server that the package nvidia-pytriton carries, on a machine without Docker and without a GPU.

That package has the server, its HTTP and gRPC endpoints, scheduler and ensembles, and the backend for Python. Models
for ONNX Runtime are served by `triton_onnxruntime.py`, a backend in Python that stands in for Triton's own. Inside
NVIDIA's container, start `tritonserver` itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import ml_dtypes
import typer

import opgate
from opgate import folders
from opgate.child_process import ChildProcess, tied

#: The version of nvidia-pytriton. It carries tritonserver 2.51.
PACKAGE = "0.7.0"
_SERVER = Path("pytriton") / "tritonserver"

Log = Callable[[str], None]


class TritonError(Exception):
    """Triton can't be installed or started. The message says why."""


@dataclass(frozen=True, slots=True)
class Installation:
    """An unpacked nvidia-pytriton, the packages of its backend in Python, and the folder of backends made from both."""

    package: Path
    site_packages: Path
    backends: Path

    @property
    def program(self) -> Path:
        """The server."""
        return self.package / _SERVER / "bin" / "tritonserver"


def default_folder() -> Path:
    """Returns where the server is installed if no other folder is named."""
    return folders.user_cache() / f"triton-{PACKAGE}"


def install(folder: Path, log: Log) -> Installation:
    """Installs the server into a folder, if it is not there. Raises TritonError.

    The package needs an old NumPy, so it gets an environment of its own. Another process that installs into the same
    folder waits.
    """
    with folders.locked(folder):
        return _install(folder, log)


def _install(folder: Path, log: Log) -> Installation:
    folder = folder.resolve()  # links in it lead to other parts of it
    python = folder / "python"
    wanted = f"nvidia-pytriton=={PACKAGE} numpy<2 onnxruntime=={version('onnxruntime')}"
    installed = folder / "installed.txt"
    package = folder / "package"
    if not installed.is_file() or installed.read_text() != wanted:
        log(f"installing {wanted} into {folder}")
        for part in (python, package, folder / "backends"):
            shutil.rmtree(part, ignore_errors=True)
        installed.unlink(missing_ok=True)
        venv.create(python, with_pip=True)
        server, *packages = wanted.split()
        with tempfile.TemporaryDirectory(dir=folder) as wheels:
            # Its dependencies fit into no other environment, and the server needs none of them.
            _pip(python, "download", "--no-deps", "--dest", wheels, server)
            _pip(python, "install", *packages)
            with zipfile.ZipFile(next(Path(wheels).glob("*.whl"))) as wheel:
                wheel.extractall(package)
        _make_backends(package, folder / "backends")
        installed.write_text(wanted)
    # The backend is this project's own, and may have changed.
    _replace(folder / "backends" / "onnxruntime" / "model.py", Path(__file__).with_name("triton_onnxruntime.py"))
    site = python / "lib" / f"python{_python()}" / "site-packages"
    # Models in Python run in an isolated Python, which looks for modules beside the backend. opgate.numpy needs these.
    modules = {name: site / name for name in ("numpy", "numpy.libs")}
    modules |= {module.__name__: Path(module.__path__[0]).resolve() for module in (opgate, ml_dtypes)}
    for name, target in modules.items():
        link = folder / "backends" / "python" / name
        if target.exists() and not (link.is_symlink() and link.readlink() == target):
            new = link.with_name(f".{name}")
            new.unlink(missing_ok=True)
            new.symlink_to(target)
            new.replace(link)
    return Installation(package, site, folder / "backends")


def _replace(file: Path, source: Path) -> None:
    """Gives a file the content of another in one step, because a server that starts meanwhile may be reading it."""
    if file.is_file() and file.read_bytes() == source.read_bytes():
        return
    temporary = file.with_name(f".{file.name}")
    shutil.copy(source, temporary)
    temporary.replace(file)


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", *arguments]
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        raise TritonError(f"pip {' '.join(arguments)} failed:\n{finished.stderr.strip()}")


def _make_backends(package: Path, backends: Path) -> None:
    server = package / _SERVER
    stub = server / "python_backend_stubs" / _python() / "triton_python_backend_stub"
    if not stub.is_file():
        known = ", ".join(sorted(path.name for path in (server / "python_backend_stubs").iterdir()))
        raise TritonError(f"nvidia-pytriton {PACKAGE} serves with Python {known}, this is Python {_python()}")
    for program in (server / "bin" / "tritonserver", stub):
        program.chmod(0o755)
    python = backends / "python"
    python.mkdir(parents=True)
    (backends / "onnxruntime").mkdir()
    # The server refuses links to these files.
    for file in (server / "backends" / "python").iterdir():
        if file.is_file():
            shutil.copy(file, python)
    shutil.copy(stub, python)


def command(
    installation: Installation, repository: Path, http_port: int, grpc_port: int, extra: Sequence[str] = ()
) -> list[str]:
    """Returns the command line of the server."""
    return [
        str(installation.program),
        f"--model-repository={repository}",
        f"--backend-directory={installation.backends}",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        *extra,
    ]


def environment(installation: Installation, repository: Path, libraries: Sequence[Path] = ()) -> dict[str, str]:
    """Returns the environment of the server. It finds op libraries by their file names in the folders `libraries`."""
    folders = [installation.package / "nvidia_pytriton.libs", *libraries]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, folders)),
        "PYTHONPATH": str(installation.site_packages),
        "OPGATE_TRITON_REPOSITORY": str(repository),
    }


def states_all_tensors(repository: Path) -> bool:
    """Returns whether every config states inputs and outputs. Then Triton needs not complete any, which takes seconds
    for each model."""
    from opgate.service.repository.config import read_config
    from opgate.service.repository.paths import model_names

    for name in model_names(repository):
        path = repository / name / "config.pbtxt"
        if not path.is_file():
            return False
        config = read_config(path)
        if not config.input or not config.output:
            return False
    return True


Repository = Annotated[
    Path | None,
    typer.Option(
        "--model-repository", "--model-store", help="The folder of the models.", show_default="./model_repository"
    ),
]
HttpAddress = Annotated[str, typer.Option("--http-address", "--http-host", help="Address of HTTP.")]
GrpcAddress = Annotated[str, typer.Option("--grpc-address", "--grpc-host", help="Address of gRPC.")]
Start = Annotated[
    float, typer.Option("--start-timeout", help="Seconds in which the server must have loaded its models.")
]
Folder = Annotated[
    Path | None, typer.Option("--install-into", help="The folder of the server.", show_default="~/.cache/opgate")
]


def triton(
    context: typer.Context,
    model_repository: Repository = None,
    http_address: HttpAddress = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="Port of HTTP.")] = 8010,
    grpc_address: GrpcAddress = "127.0.0.1",
    grpc_port: Annotated[int, typer.Option(help="Port of gRPC.")] = 8011,
    metrics_port: Annotated[int, typer.Option(help="Port of the metrics.")] = 8012,
    start_timeout: Start = 120,
    install_into: Folder = None,
) -> None:
    """Serve a model repository with a real Triton server, without Docker and without a GPU. The first start downloads
    the server. Options after -- go to tritonserver."""
    from pydantic import ValidationError

    from opgate.service.repository.config import ConfigError
    from opgate.service.repository.op_libraries import trusted_folders
    from opgate.service.settings import Settings

    options: dict[str, Any] = {"model_repository": model_repository} if model_repository else {}
    try:
        settings = Settings(**options)
    except ValidationError as error:
        typer.echo(f"opgate: {error}", err=True)
        raise typer.Exit(2) from None
    repository = settings.repository().resolve()
    extra = [
        f"--http-address={http_address}",
        f"--grpc-address={grpc_address}",
        f"--metrics-port={metrics_port}",
        "--exit-on-error=false",
        "--log-info=false",
        f"--backend-config=python,shm-region-prefix-name={_shared_memory()}",
    ]
    try:
        if not repository.is_dir():
            raise TritonError(f"model repository '{repository}' is not a directory: name one with --model-repository")
        if states_all_tensors(repository):
            extra.append("--disable-auto-complete-config")
        installed = install(install_into or default_folder(), lambda line: typer.echo(f"opgate: {line}", err=True))
        line = command(installed, repository, http_port, grpc_port, [*extra, *context.args])
        libraries = [folder.resolve() for folder in trusted_folders(settings)]
        address = f"http://{f'[{http_address}]' if ':' in http_address else http_address}:{http_port}"
        if _answers(f"{address}/v2/health/live"):
            raise TritonError(f"another server answers at {address}: name another port with --http-port")
        status = _run(line, environment(installed, repository, libraries), address, start_timeout)
    except (TritonError, ConfigError, OSError) as error:
        typer.echo(f"opgate: {error}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(status)


def _shared_memory() -> str:
    """Returns how the names of the server's regions of shared memory begin."""
    return f"opgate_triton_{os.getpid()}_"


def _run(line: list[str], variables: dict[str, str], address: str, start_timeout: float) -> int:
    """Runs the server until it ends, and passes SIGTERM and SIGINT on. Returns its exit status. Raises TritonError."""
    server = ChildProcess(tied(line), env=variables)
    # The stubs of the backend in Python end by themselves once the server has ended.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: server.send_signal(received))
    try:
        end = time.monotonic() + start_timeout
        while server.poll() is None and not _answers(f"{address}/v2/health/live"):
            if time.monotonic() > end:
                raise TritonError(f"the server has not started in {start_timeout:g} s (--start-timeout)")
            time.sleep(0.1)
        if server.poll() is None:
            typer.echo(f"opgate: Triton listens on {address}", err=True)
        return server.wait()
    finally:
        server.end()
        for region in Path("/dev/shm").glob(f"{_shared_memory()}*"):
            region.unlink(missing_ok=True)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
