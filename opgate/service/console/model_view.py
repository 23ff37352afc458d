"""What the console shows of one model: its tensors, its form, its graph, its config and its examples."""

from __future__ import annotations

import json
import logging
import mimetypes
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from opgate.service.console.graph import read_graphs
from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.spec import PYTHON, ModelSpec, TensorSpec
from opgate.service.core.triton_messages import ModelConfig
from opgate.service.gateway import Gateway
from opgate.service.repository.catalog import Entry
from opgate.service.repository.config import ConfigError
from opgate.service.repository.loader import LoadedModel, model_file
from opgate.service.repository.op_libraries import entries, trusted_folders
from opgate.service.repository.paths import confined
from opgate.service.wire.friendly import file_input
from opgate.service.wire.proto_json import to_plain

logger = logging.getLogger("opgate.console")

_EXAMPLES = "examples"  # the folder beside the versions
_MOST_EXAMPLES = 30
_MOST_EXAMPLE_BYTES = 32 << 20
_MOST_JSON_BYTES = 65536
_MOST_CONFIG_BYTES = 1 << 20
_POINTS = ("ply", "pcd", "las")
mimetypes.add_type("application/ply", ".ply")
mimetypes.add_type("image/webp", ".webp")


def model_view(gateway: Gateway, model: LoadedModel, entry: Entry) -> dict[str, Any]:
    """Returns everything that doesn't change while the model is loaded. It reads files, so call it on a thread."""
    spec, config = model.spec, model.config
    return {
        "name": spec.name,
        "version": spec.version,
        "platform": spec.platform,
        "backend": config.backend,
        "batching": _batching(config),
        "max_batch_size": config.max_batch_size,
        "instances": [to_plain(group) for group in config.instance_group],
        "libraries": _libraries(gateway, config),
        "completed": list(_completed(entry.config, config)),
        "config": to_plain(config),
        "config_text": _config_text(entry),
        "inputs": [_tensor(spec, tensor) for tensor in spec.inputs.values()],
        "outputs": [_tensor(spec, tensor) for tensor in spec.outputs.values()],
        "streams": spec.decoupled,
        "form": _form(model),
        "examples": list(_examples(entry)),
        "steps": [
            {
                "model": step.model_name,
                "version": str(step.model_version),
                "inputs": dict(step.input_map),
                "outputs": dict(step.output_map),
            }
            for step in config.ensemble_scheduling.step
        ],
        "graph": _graph(model, entry),
    }


def _tensor(spec: ModelSpec, tensor: TensorSpec) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype.name,
        "shape": spec.wire_shape(tensor),
        "optional": tensor.optional,
        "labels": list(tensor.labels[:100]),
    }


def _batching(config: ModelConfig) -> str:
    if config.HasField("sequence_batching"):
        return "sequences of requests that share state"
    if not config.max_batch_size:
        return "no batch dim"
    if not config.HasField("dynamic_batching"):
        return f"up to {config.max_batch_size} rows of one request"
    delay = config.dynamic_batching.max_queue_delay_microseconds
    waits = f", waits up to {delay} us" if delay else ""
    return f"up to {config.max_batch_size} rows of several requests{waits}"


def _libraries(gateway: Gateway, config: ModelConfig) -> list[dict[str, str]]:
    found = []
    trusted = trusted_folders(gateway.settings)
    for name in config.model_operations.op_library_filename:
        known: dict[str, str] = {"name": name, "sha256": "", "trusted_by": ""}
        for folder in trusted:
            try:
                listed = next((each for each in entries([folder]) if each.get("file") == name), None)
            except ConfigError:
                continue
            if listed is not None:
                known |= {"sha256": str(listed.get("sha256", "")), "trusted_by": str(folder / "manifest.json")}
                break
        found.append(known)
    return found


def _completed(written: ModelConfig | None, complete: ModelConfig) -> Iterator[dict[str, str]]:
    """Yields the fields that a config has now and that were not written."""

    def walk(before: Any, after: Any, path: str) -> Iterator[dict[str, str]]:
        if isinstance(after, Mapping):
            given = before if isinstance(before, Mapping) else {}
            for name, value in after.items():
                yield from walk(given.get(name), value, f"{path}.{name}" if path else name)
        elif isinstance(after, list) and isinstance(before, list) and len(before) == len(after):
            for number, pair in enumerate(zip(before, after, strict=True)):
                yield from walk(*pair, f"{path}[{number}]")
        elif before != after:
            yield {"field": path, "value": json.dumps(after)}

    yield from walk({} if written is None else to_plain(written), to_plain(complete), "")


def _config_text(entry: Entry) -> str:
    if entry.source is None or entry.source.config is not None:
        return ""
    try:
        path = confined(entry.source.repository, entry.source.folder / "config.pbtxt")
        return path.read_bytes()[:_MOST_CONFIG_BYTES].decode("utf-8", "replace")
    except (OSError, ConfigError):
        return ""


def _form(model: LoadedModel) -> dict[str, Any]:
    spec, presentation = model.spec, model.presentation
    one = file_input(spec)
    files = [tensor.name for tensor in spec.inputs.values() if tensor.is_file]
    required = [tensor for tensor in spec.inputs.values() if not tensor.optional]
    texts = [tensor for tensor in required if tensor.datatype.name == "BYTES"]
    if files and all(tensor.is_file for tensor in required):
        kind = _kind_of_file(presentation.media_types)
    elif texts and len(texts) == len(required):
        kind = "text"
    elif required and spec.max_batch_size and all(tensor.dims == (1,) for tensor in required):
        kind = "table"
    else:
        kind = "tensors"
    return {
        "kind": kind,
        "input": "" if one is None else one.name,
        "files": files,
        "media": list(presentation.media_types),
        "picture_model": presentation.picture_model,
        "parameters": [
            {"name": tensor.name, "datatype": tensor.datatype.name, "shape": list(tensor.dims)}
            for tensor in spec.inputs.values()
            if tensor.optional
        ],
    }


def _kind_of_file(media: tuple[str, ...]) -> str:
    families = {name.partition("/")[0] for name in media}
    if "image" in families:
        return "picture"
    if "audio" in families:
        return "sound"
    if any(name.endswith(_POINTS) for name in media):
        return "points"
    return "bytes"


def _examples(entry: Entry) -> Iterator[dict[str, Any]]:
    """Yields the examples in the folder of the model: files, bodies for /predict in JSON, and folders with a file for
    each input, which it is named after."""
    for path in _in_folder(entry, _folder(entry)):
        title = path.stem.replace("_", " ")
        if path.is_dir():
            files = {file.stem: _address(entry, file) for file in _in_folder(entry, path) if file.is_file()}
            yield {"title": title, "kind": "files", "files": files}
        elif path.suffix != ".json":
            yield {"title": title, "kind": "file", "file": _address(entry, path), "media": _media(path)}
        elif path.stat().st_size <= _MOST_JSON_BYTES:
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
                orjson.dumps(content)  # it has no integers beyond 64 bits
                yield {"title": title, "kind": "json", "json": content}
            except (ValueError, TypeError, RecursionError, OSError) as error:
                logger.warning("%s can't be read: %s", path, error)


def _folder(entry: Entry) -> Path | None:
    return None if entry.source is None else entry.source.folder / _EXAMPLES


def _address(entry: Entry, path: Path) -> str:
    folder = _folder(entry)
    assert folder is not None
    return f"console/examples/{quote(entry.name)}/{quote(path.relative_to(folder.resolve()).as_posix())}"


def _in_folder(entry: Entry, folder: Path | None) -> list[Path]:
    """Returns the first files and folders of a folder, nothing if it lies outside the repository."""
    if entry.source is None or folder is None:
        return []
    try:
        folder = confined(entry.source.repository, folder)
        paths = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
        paths = [confined(entry.source.repository, path) for path in paths[:_MOST_EXAMPLES]]
        return [path for path in paths if path.is_dir() or _fits(path)]
    except (OSError, ConfigError):
        return []


def _fits(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= _MOST_EXAMPLE_BYTES


def read_example(entry: Entry, name: str) -> tuple[bytes, str]:
    """Returns the bytes of an example and their media type. Raises ServingError (NOT_FOUND)."""
    *inner, last = name.split("/")
    folder = _folder(entry)
    path = None
    if folder is not None and len(inner) <= 1 and not any(part.startswith(".") or not part for part in inner):
        path = next((path for path in _in_folder(entry, folder.joinpath(*inner)) if path.name == last), None)
    if path is None or not path.is_file():
        raise ServingError(Kind.NOT_FOUND, f"model '{entry.name}' has no example '{name[:80]}'")
    return path.read_bytes(), _media(path)


def _media(path: Path) -> str:
    return mimetypes.guess_type(path.name)[0] or "application/octet-stream"


def _graph(model: LoadedModel, entry: Entry) -> dict[str, Any] | None:
    """Returns the graph of a model file, None if the model has none that can be read."""
    path = _model_file(model, entry)
    return None if path is None else read_graphs([path])[0]


def _model_file(model: LoadedModel, entry: Entry) -> Path | None:
    """Returns the ONNX file of a model, None if it has none."""
    if entry.source is None or model.steps or model.spec.platform == PYTHON:
        return None
    try:
        path = model_file(entry.source.folder, model.config, int(model.spec.version))
        return confined(entry.source.repository, path)
    except ConfigError:
        return None


def ops_in_use(gateway: Gateway) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Returns the models and versions that use each op, by domain and name. It reads files, so call it on a thread."""
    users: dict[tuple[str, str], list[tuple[str, str]]] = {}
    paths: dict[Path, list[LoadedModel]] = {}
    for model in list(gateway.catalog.models()):
        entry = gateway.catalog.entry(model.spec.name)
        path = None if entry is None else _model_file(model, entry)
        if path is not None:
            paths.setdefault(path, []).append(model)
    for models, graph in zip(paths.values(), read_graphs(list(paths)), strict=True):
        for domain, op in [] if graph is None else graph["custom_ops"]:
            users.setdefault((domain, op), []).extend((model.spec.name, model.spec.version) for model in models)
    return users
