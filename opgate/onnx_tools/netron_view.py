"""Opens a model in Netron, which then also knows the ops of a table: their inputs, attributes and documentation."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.op_table import Attribute, Op

_METADATA = "onnx-metadata.json"
_KINDS = {"int": "int64", "float": "float32", "bool": "int64", "str": "string", "choice": "string"}


def metadata(ops: Iterable[Op]) -> list[dict[str, Any]]:
    """Returns what Netron's page reads of each op, in the form of its own onnx-metadata.json."""
    return [_entry(op) for op in ops]


def _entry(op: Op) -> dict[str, Any]:
    required = sum(not tensor.optional for tensor in op.inputs)
    return {
        "name": op.name,
        "module": op.domain,
        "version": op.since_version,
        "description": f"{op.doc}\n\n`{op.signature}`",
        "attributes": [_attribute(attribute) for attribute in op.attributes],
        "inputs": [
            {
                "name": tensor.name,
                "type": _type(op, tensor.type),
                "description": "",
                **({"option": "optional"} if tensor.optional else {}),
                **({"list": True} if tensor.variadic else {}),
            }
            for tensor in op.inputs
        ],
        "min_input": required,
        "max_input": 2147483647 if any(tensor.variadic for tensor in op.inputs) else len(op.inputs),
        "outputs": [{"name": output.name, "type": _type(op, output.type), "description": ""} for output in op.outputs],
        "min_output": sum(not output.optional for output in op.outputs),
        "max_output": len(op.outputs),
        "type_constraints": [
            {
                "type_param_str": name,
                "description": "",
                "allowed_type_strs": [DTYPES[dtype].onnx_type for dtype in dtypes],
            }
            for name, dtypes in op.type_variables.items()
        ],
    }


def _type(op: Op, name: str) -> str:
    return name if name in op.type_variables else DTYPES[name].onnx_type


def _attribute(attribute: Attribute) -> dict[str, Any]:
    # A node stores a list of strings as one string.
    several = attribute.list and attribute.kind != "str"
    entry: dict[str, Any] = {
        "name": attribute.name,
        "type": _KINDS[attribute.kind] + "[]" * several,
        "required": attribute.required,
        "description": f"one of {', '.join(attribute.choices)}" if attribute.choices else "",
    }
    if not attribute.required and not attribute.list:
        entry["default"] = attribute.default
    return entry


def show(path: Path, ops: Iterable[Op], address: tuple[str, int], *, browse: bool) -> tuple[str, int]:
    """Starts Netron's server for a model and returns its address. Raises ImportError if Netron isn't installed.

    Netron has no option for more ops. Its server answers one file, onnx-metadata.json, with ours added.
    """
    import netron
    from netron import server

    own = Path(server.__file__).with_name(_METADATA)
    text = json.dumps([*json.loads(own.read_text(encoding="utf-8")), *metadata(ops)]).encode()
    handler = server._HTTPRequestHandler

    class WithOps(handler):  # type: ignore[misc, valid-type]
        def do_GET(self) -> None:
            if self.path.partition("?")[0] == f"/{_METADATA}":
                self._write(200, "application/json", text)
            else:
                super().do_GET()

    server._HTTPRequestHandler = WithOps
    try:
        found: tuple[str, int] = netron.start(str(path), address=address, browse=browse)
    finally:
        server._HTTPRequestHandler = handler
    return found


def wait() -> None:
    """Waits until Ctrl-C, and stops the server."""
    import netron

    netron.wait()
