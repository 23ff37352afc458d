"""Opens models in Python: a `model.py` that runs in worker processes, in the gateway's environment or in its own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

from google.protobuf import json_format

from opgate import folders
from opgate.service.core.triton_messages import ModelConfig
from opgate.service.execution.session import ModelSession
from opgate.service.isolation.calls import Calls
from opgate.service.isolation.confinement import Confinement
from opgate.service.isolation.python_model import PythonOpening
from opgate.service.isolation.python_session import PythonSession
from opgate.service.isolation.worker_session import WorkerLimits
from opgate.service.repository.config import (
    ConfigError,
    parameter,
    refuse_unsupported,
    state_defaults,
    with_schedulers,
)
from opgate.service.repository.devices import instances, place
from opgate.service.settings import Settings
from opgate.service.wire.proto_json import to_plain

logger = logging.getLogger("opgate.repository")

ENVIRONMENT = "EXECUTION_ENV_PATH"
_MODEL_FOLDER = "$$TRITON_MODEL_DIRECTORY"


def open_python(
    path: Path, config: ModelConfig, version: int, folder: Path, settings: Settings, calls: Calls | None
) -> tuple[list[ModelSession], list[str]]:
    """Opens the sessions of a model in Python, and completes its config.

    Returns them, and what was added to the config. Raises ConfigError if its environment is
    none, and ServingError with what the model raised.
    """
    if calls is None:
        raise ConfigError("backend 'python': only the gateway runs models in Python")
    python = _interpreter(parameter(config, ENVIRONMENT), folder)
    state_defaults(config)
    place(config)
    arguments = {
        "model_config": json.dumps(to_plain(config, with_defaults=True)),
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
        "model_instance_name": f"{config.name}_0",
        "model_name": config.name,
        "model_repository": str(folder),
        "model_version": str(version),
    }
    opening = PythonOpening(
        path,
        arguments,
        confinement(settings),
        completes=True,
        tells_lines=settings.python_error_lines,
        log_level=settings.log_level,
        json_log=settings.log_format == "json",
    )
    limits = worker_limits(settings)
    completing = PythonSession(config.name, opening, limits, calls, python)
    completing.close()
    added = _complete(config, completing.description["config"])
    place(config)
    arguments["model_config"] = json.dumps(to_plain(with_schedulers(config), with_defaults=True))
    sessions: list[ModelSession] = []
    with contextlib.ExitStack() as opened:
        # An idle GPU is taken before an idle CPU.
        for name, kind, gpu in sorted(instances(config), key=lambda instance: instance.gpu is None):
            own = {
                **arguments,
                "model_instance_kind": kind,
                "model_instance_device_id": str(gpu or 0),
                "model_instance_name": name,
            }
            of_instance = replace(opening, arguments=own, completes=False)
            session = PythonSession(config.name, of_instance, limits, calls, python)
            opened.callback(session.close)
            sessions.append(session)
        opened.pop_all()
    return sessions, added


def check_allowed(settings: Settings) -> None:
    """Raises ConfigError if models in Python are not allowed."""
    if not settings.allow_python_models:
        raise ConfigError(
            "backend 'python': models in Python run whatever their model.py says, and are served only with "
            "--allow-python-models (OPGATE_ALLOW_PYTHON_MODELS)"
        )


def confinement(settings: Settings) -> Confinement:
    """Returns what worker processes may not do."""
    return Confinement(settings.isolation_memory_bytes, not settings.isolation_network, not settings.isolation_writes)


def worker_limits(settings: Settings) -> WorkerLimits:
    """Returns what worker processes may take."""
    names = tuple(part.strip() for part in settings.isolation_environment.split(",") if part.strip())
    return WorkerLimits(settings.run_timeout, settings.max_worker_bytes, names, settings.start_timeout)


def _complete(config: ModelConfig, found: dict[str, object]) -> list[str]:
    """Takes over what `auto_complete_config` added. Returns the names of the fields. Raises ConfigError."""
    before = to_plain(config)
    try:
        completed = json_format.ParseDict(found, ModelConfig())
    except (json_format.ParseError, ValueError) as error:
        raise ConfigError(f"auto_complete_config: {error}") from None
    if completed.name != config.name:
        raise ConfigError(f"auto_complete_config: expected the name '{config.name}', got '{completed.name}'")
    config.CopyFrom(completed)
    config.backend = "python"
    state_defaults(config)
    refuse_unsupported(config)
    if not config.input and not config.output:
        raise ConfigError("a model in Python needs inputs or outputs, in its config or from auto_complete_config")
    after = to_plain(config)
    return [
        name
        for name in ("max_batch_size", "input", "output", "dynamic_batching")
        if after.get(name) != before.get(name)
    ]


def _interpreter(given: str, folder: Path) -> Path | None:
    """Returns the interpreter of an environment: a folder, or an archive of conda-pack. None stands for the gateway's.

    Raises ConfigError.
    """
    if not given:
        return None
    path = Path(given.replace(_MODEL_FOLDER, str(folder)))
    if not path.is_absolute():
        path = folder / path
    where = f"parameter '{ENVIRONMENT}'"
    try:
        if path.is_file():
            path = _unpacked(path, where)
        python = path / "bin" / "python3"
        found, there = python.exists(), path.exists()
    except OSError as error:  # a name that is too long, a folder that nobody may read
        raise ConfigError(f"{where}: '{given[:200]}' can't be read: {error.strerror}") from None
    if not found:
        got = path if there else f"{path}, which isn't there"
        raise ConfigError(f"{where}: expected an environment with bin/python3, or an archive of conda-pack, got {got}")
    return python


def _unpacked(archive: Path, where: str) -> Path:
    """Unpacks an archive once. Returns the folder."""
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    target = folders.builds() / "environments" / digest
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f"{digest[:12]}-", dir=target.parent))
    try:
        with tarfile.open(archive) as packed:
            # Python 3.11 has filters since 3.11.4. The operator wrote the archive, and links leave no folder with them.
            filters = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
            packed.extractall(new, **filters)  # type: ignore[arg-type]
        with contextlib.suppress(OSError):  # another gateway was quicker
            new.rename(target)
    except (OSError, tarfile.TarError) as error:
        raise ConfigError(f"{where}: {archive.name} can't be unpacked: {error}") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return target
