"""The ops in OpenVINO, in models that it reads from ONNX files.

    import openvino as ov, opgate.openvino

    core = ov.Core()
    core.add_extension(opgate.openvino.extensions())
    compiled = core.compile_model("model.onnx", "CPU")

The kernels are those of the library for ONNX Runtime that `opgate build` wrote or that the wheel brought.
docs/openvino.md tells the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    from opgate.ops_build.adapters.openvino.extension import OpenVinoOps as _OpenVinoOps
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "openvino":
        raise
    raise ImportError("opgate.openvino needs OpenVINO: pip install openvino") from error

from opgate.ops_build.adapters.numpy.library import load as _load
from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.op_table import Op

__all__ = ["extensions", "left_out", "load", "node", "ops"]

_LOADED: dict[Path, _OpenVinoOps] = {}


def load(path: Path | str | None = None) -> _OpenVinoOps:
    """Returns the ops of your op library, a file lib<domain>_<engine>.so that `opgate build FOLDER` wrote, or of
    opgate's. It has the functions below as methods.

    The library of any engine that has kernels for the CPU will do. Raises ImportError if it can't be loaded.
    """
    found = Path(path or BuildOptions().library()).resolve()
    if found not in _LOADED:
        _LOADED[found] = _OpenVinoOps(_load(found))
    return _LOADED[found]


def extensions() -> list[Any]:
    """Returns what lets OpenVINO read ONNX nodes of opgate's ops, for `openvino.Core.add_extension`."""
    return load().extensions()


def node(name: str, *inputs: Any, **attributes: Any) -> Any:
    """Returns a node of one of opgate's ops, for a model that is made in Python. An absent input is None.

    Raises KeyError for an op that OpenVINO can't have, TypeError or ValueError for what doesn't fit the signature.
    """
    return load().node(name, inputs, attributes)


def ops() -> list[Op]:
    """Returns opgate's ops that OpenVINO can have."""
    return list(load().ops.values())


def left_out() -> dict[str, str]:
    """Returns why OpenVINO can't have some of opgate's ops, by their names."""
    return dict(load().left_out)
