"""What a client may send along when it loads a model: a config, and the files of the model in place of its folder.

It can bring neither native code nor Python code: a config may name only the op libraries that the model's own config
names, and a file can be nothing but the ONNX model and its data.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from opgate.service.core.errors import ServingError, invalid, json_kind
from opgate.service.core.triton_messages import ModelConfig
from opgate.service.repository.config import CUDA_PARAMETERS, MOST_CONFIG_BYTES, SESSION_PREFIX, in_python, parameter
from opgate.service.repository.loader import copied, load_config
from opgate.service.repository.python_models import ENVIRONMENT
from opgate.service.repository.repositories import Source

_NAME = re.compile(r"[^./\0][^/\0]{0,254}")
_FILE = re.compile(r"file:([1-9][0-9]{0,17})/([\w.-]{1,200})")
# What follows the name of a model in those of the files with its weights is up to its exporter.
_CODE = (".so", ".dll", ".dylib", ".py", ".pyc", ".pyd", ".sh", ".pbtxt")
_MOST_FILES = 256
_ISOLATION = "isolation"


@dataclass(frozen=True, slots=True)
class Override:
    """A config and a folder of files that replace those of the repository. Without them the repository's are used.

    `states_batch` says whether the config says what max_batch_size is. In the message 0 and nothing are the same.
    """

    config: ModelConfig | None = None
    states_batch: bool = False
    folder: Path | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Lets other processes get it: the messages of tritonclient can't be pickled."""
        config = None if self.config is None else self.config.SerializeToString()
        return _from_bytes, (config, self.states_batch, self.folder)

    def beside(self, source: Source) -> ModelConfig | None:
        """Returns the config, in a worker process if that is where the model's own config puts it.

        Raises ServingError (INVALID) if the config names native code or paths that the model's own config doesn't name,
        or if it says that the model needs no such process although its own says so.
        """
        if self.config is None:
            return None
        try:
            own = load_config(source.repository, source.name)
        except ServingError:  # what it said of the process can't be known
            own = ModelConfig()
            own.parameters[_ISOLATION].string_value = "process"
        config = copied(self.config)
        if self.folder is None:
            states_kind = config.backend or config.platform or config.HasField("ensemble_scheduling")
            if in_python(own) and not states_kind:
                config.backend = "python"  # the model's file says so
            _check_powers(config, own)
        if parameter(own, _ISOLATION) != "process" or parameter(config, _ISOLATION) == "process":
            return config
        if _ISOLATION in config.parameters:
            raise invalid(
                f"config: parameter {_ISOLATION}: a load request can't set it to less than the model's own config "
                f"does: expected process, got {parameter(config, _ISOLATION)[:80]!r}"
            )
        config.parameters[_ISOLATION].string_value = "process"
        return config

    def remove(self) -> None:
        """Removes the files."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _from_bytes(config: bytes | None, states_batch: bool, folder: Path | None) -> Override:
    return Override(None if config is None else ModelConfig.FromString(config), states_batch, folder)


def read_override(name: str, parameters: Mapping[str, Any]) -> Override:
    """Returns what the parameters of a load request bring. A file is bytes, or text in base64.

    Raises ServingError (INVALID) that names the parameter, or if the model's name is no name of a folder.
    """
    if not _NAME.fullmatch(name):
        raise invalid(f"model '{name[:80]}': expected the name of a folder in a model repository")
    config: ModelConfig | None = None
    states_batch = False
    files: dict[tuple[str, str], bytes] = {}
    for key, value in parameters.items():
        if key == "config":
            config, states_batch = _config(value)
        elif key.startswith("file:"):
            files[_path(key)] = _content(key, value)
        else:
            raise invalid(f"parameter {key[:80]!r}: expected config or file:<version>/<name>")
    if not files:
        return Override(config, states_batch)
    if len(files) > _MOST_FILES:
        raise invalid(f"expected at most {_MOST_FILES} files, got {len(files)}")
    if config is None:
        raise invalid("parameter config is missing: files need a config, because they replace the model's whole folder")
    _check_powers(config, ModelConfig())
    folder = Path(tempfile.mkdtemp(prefix="opgate-model-"))
    try:
        for (version, file), content in files.items():
            path = folder / name / version / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise invalid(f"the files can't be kept: {error.strerror}") from None
    return Override(config, states_batch, folder.resolve())


def _check_powers(config: ModelConfig, own: ModelConfig) -> None:
    """Raises ServingError (INVALID) if a config reaches code or files that `own`, the operator's, doesn't reach."""
    wanted, known = _powers(config), _powers(own)
    for field, value in sorted(wanted.items()):
        if known.get(field) != value:
            raise invalid(
                f"config: {field}: a load request can't set it, expected what the model's own config says "
                f"({known.get(field, 'nothing')}), got {value[:200]}"
            )


def _powers(config: ModelConfig) -> dict[str, str]:
    """Returns the values of the fields that name libraries, files or folders, or that reach into the engine."""
    found: dict[str, str] = {}
    if config.model_operations.op_library_filename:
        found["model_operations"] = ", ".join(config.model_operations.op_library_filename)
    if config.backend not in ("", "onnxruntime") or config.platform not in ("", "onnxruntime_onnx", "ensemble"):
        found["backend"] = config.backend or config.platform
        found["default_model_filename"] = config.default_model_filename
        for key, value in config.parameters.items():
            found[f"parameter {key}"] = value.string_value
    accelerators = config.optimization.execution_accelerators
    for accelerator in (*accelerators.gpu_execution_accelerator, *accelerators.cpu_execution_accelerator):
        for key, text in accelerator.parameters.items():
            found[f"execution_accelerators '{accelerator.name}' {key}"] = text
    for key, value in config.parameters.items():
        if key.startswith(SESSION_PREFIX) or key in CUDA_PARAMETERS or key == ENVIRONMENT:
            found[f"parameter {key}"] = value.string_value
    return found


def _config(value: Any) -> tuple[ModelConfig, bool]:
    if not isinstance(value, str):
        raise invalid(f"parameter config: expected a string with JSON, got {json_kind(value)}")
    if len(value) > MOST_CONFIG_BYTES:
        raise invalid(f"parameter config: expected at most {MOST_CONFIG_BYTES} characters, got {len(value)}")
    try:
        fields = json.loads(value)
        if not isinstance(fields, dict):
            raise ValueError(f"expected an object, got {json_kind(fields)}")
        config = json_format.ParseDict(fields, ModelConfig(), max_recursion_depth=32)
    except (ValueError, RecursionError, json_format.ParseError) as error:
        raise invalid(f"parameter config: expected a model configuration in JSON: {str(error)[:500]}") from None
    return config, any(fields.get(key) is not None for key in ("max_batch_size", "maxBatchSize"))


def _path(key: str) -> tuple[str, str]:
    match = _FILE.fullmatch(key)
    if match is None or match[2].startswith("."):
        raise invalid(f"parameter {key[:80]!r}: expected file:<version>/<name> with the bare name of a file")
    if match[2].lower().endswith(_CODE) or ".so." in match[2].lower():
        raise invalid(
            f"parameter {key[:80]!r}: a load request can bring a model and its data, no code and no config file"
        )
    return match[1], match[2]


def _content(key: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise invalid(f"parameter {key[:80]!r}: expected the file's bytes in base64, got {json_kind(value)}")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"parameter {key[:80]!r}: expected the file's bytes in base64") from None
