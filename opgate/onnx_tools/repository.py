"""Writes a model into a model repository: its file and its config.pbtxt."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx

from opgate.onnx_tools.values import Shape, Values

#: How large a file may be: protobuf can't write a larger one.
LARGEST = 2**31 - 2**20
#: How many rows a batch has at most, if the export doesn't state it.
MAX_BATCH_SIZE = 8

_TYPES = {
    "f16": "TYPE_FP16",
    "bf16": "TYPE_BF16",
    "f32": "TYPE_FP32",
    "f64": "TYPE_FP64",
    "i8": "TYPE_INT8",
    "u8": "TYPE_UINT8",
    "i32": "TYPE_INT32",
    "i64": "TYPE_INT64",
    "bool": "TYPE_BOOL",
    "str": "TYPE_STRING",
}


class RepositoryError(ValueError):
    """A model doesn't fit a repository. The message names the tensor or the folder."""


def batch_dim(model: onnx.ModelProto) -> str | None:
    """Returns the name of the dim that is a batch: the open first dim of every tensor, named N or with "batch" in its
    name. The gateway reads a model without a config in the same way."""
    values = Values(model)
    shapes = [values.shape(value.name) for value in (*model.graph.input, *model.graph.output)]
    firsts = {shape[0] if shape else None for shape in shapes}
    first = firsts.pop() if len(firsts) == 1 else None
    return first if isinstance(first, str) and means_batch(first) else None


def means_batch(dim: str) -> bool:
    """Returns whether the name of a first dim says that it is a batch."""
    return dim == "N" or "batch" in dim.lower()


def config_text(model: onnx.ModelProto, name: str, libraries: Sequence[str], max_batch_size: int | None) -> str:
    """Returns the config.pbtxt of a model. `libraries` are the file names of the op libraries that it needs.

    Without `max_batch_size` requests are batched if the model has a batch dim. 0 says that there is none. Raises
    RepositoryError.
    """
    if max_batch_size is None:
        max_batch_size = MAX_BATCH_SIZE if batch_dim(model) else 0
    values = Values(model)
    lines = [f"name: {_quoted(name)}", 'backend: "onnxruntime"', f"max_batch_size: {max_batch_size}"]
    for kind, tensors in (("input", model.graph.input), ("output", model.graph.output)):
        for value in tensors:
            shape = _shape_text(value.name, values.shape(value.name), batched=max_batch_size > 0)
            dtype = values.dtype(value.name)
            if dtype is None:
                raise RepositoryError(f"{kind} '{value.name}' has no type that a config can state")
            lines.append(f"{kind} {{ name: {_quoted(value.name)} data_type: {_TYPES[dtype]} {shape} }}")
    if max_batch_size:
        lines.append("dynamic_batching {}")
    lines += [f"model_operations {{ op_library_filename: {_quoted(library)} }}" for library in libraries]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _shape_text(name: str, shape: Shape | None, *, batched: bool) -> str:
    """Returns the dims of a tensor as a config states them. It has no rank 0: clients send and get one element."""
    if shape is None:
        raise RepositoryError(f"the rank of '{name}' is not known")
    if batched:
        if not shape or isinstance(shape[0], int):
            got = f"the size {shape[0]}" if shape else "no axis"
            raise RepositoryError(f"with a max_batch_size the first dim of '{name}' must be open, and it has {got}")
        shape = shape[1:]
    dims = ", ".join(str(size) if isinstance(size, int) else "-1" for size in shape)
    return f"dims: [ {dims} ]" if dims else "dims: [ 1 ] reshape { shape: [ ] }"


def check_free(folder: Path, version: int, *, overwrite: bool, other: str = "choose another --version") -> None:
    """Raises RepositoryError if a model can't be written there: a version may not be replaced, or no server looks at a
    folder of that name. `other` is what the user may do in place of --overwrite."""
    if folder.resolve().name.startswith("."):
        raise RepositoryError(
            f"--to: expected a folder whose name begins with no '.', which no server looks at, got {folder}"
        )
    if (folder / str(version)).exists() and not overwrite:
        raise RepositoryError(f"{folder / str(version)} is there: {other}, or replace it with --overwrite")


def write(
    model: onnx.ModelProto, folder: Path, config: str, version: int = 1, *, overwrite: bool = False
) -> list[Path]:
    """Writes <folder>/<version>/model.onnx, and <folder>/config.pbtxt if it is not there or `overwrite` is set. Returns
    the paths of what it wrote.

    A gateway may serve the folder: it finds the whole model or none.
    """
    path, config_path = folder / str(version) / "model.onnx", folder / "config.pbtxt"
    folder.mkdir(parents=True, exist_ok=True)
    large = model.ByteSize() > LARGEST
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as made:
        name = Path(made) / "model.onnx"
        onnx.save(model, name, save_as_external_data=large, location="model.onnx.data" if large else None)
        path.parent.mkdir(exist_ok=True)
        for file in sorted(Path(made).iterdir(), reverse=True):  # the weights first
            file.replace(path.with_name(file.name))
    if config_path.exists() and not overwrite:
        return [path]
    config_path.write_text(config, encoding="utf-8")
    return [path, config_path]
