"""The graphs of model files, as the console draws them.

A file is read in a process of its own: reading takes as long as its weights are large, and the interpreter would do
nothing else meanwhile. What was read is kept until the file changes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import onnx

from opgate.child_process import tied
from opgate.ops_build.onnx.nodes import OF_ONNX_RUNTIME, nodes_of

# Nodes of a picture that somebody can still read, and characters of the value of an attribute.
_MOST_NODES = 2000
_MOST_TEXT = 80
# Graphs that are kept, and seconds that reading those of all models may take.
_MOST_KEPT = 1024
_MOST_SECONDS = 300.0

_Key = tuple[str, int, int]
_kept: OrderedDict[_Key, dict[str, Any] | None] = OrderedDict()
_reading = threading.Lock()


def read_graphs(paths: Sequence[Path]) -> list[dict[str, Any] | None]:
    """Returns the graph of each ONNX file, None for one that can't be read. One caller reads at a time, so call it on a
    thread.

    A graph has `nodes`, the names of its `inputs` and `outputs`, how many nodes are `left_out`, and its `custom_ops` by
    domain and name, those of nodes in nodes and in functions too.
    """
    with _reading:
        keys = [_key(path) for path in paths]
        unknown = {key: path for key, path in zip(keys, paths, strict=True) if key is not None and key not in _kept}
        if unknown:
            _kept.update(zip(unknown, _in_process(list(unknown.values())), strict=False))
        found = [None if key is None else _kept.get(key) for key in keys]
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
        return found


def _key(path: Path) -> _Key | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return str(path), stat.st_mtime_ns, stat.st_size


def _in_process(paths: Sequence[Path]) -> list[dict[str, Any] | None]:
    """Returns the graphs of the files. If the process ends before it has read all, those of the first ones."""
    command = tied([sys.executable, "-m", "opgate.service.console.graph"])
    asked = json.dumps([str(path) for path in paths])
    try:
        said = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=_MOST_SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [json.loads(line) for line in said.splitlines(keepends=True) if line.endswith("\n")]


def read_graph(path: Path) -> dict[str, Any]:
    """Returns the graph of one file, as `read_graphs` does, in this process. Tensors in other files are not read."""
    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    constants = {_name(initializer.name) for initializer in graph.initializer}
    custom = {(node.domain, node.op_type) for node in nodes_of(model) if node.domain not in OF_ONNX_RUNTIME}

    def names(given: Iterable[Any], among: bool) -> list[str]:
        return [name for name in map(_name, given) if name and (name in constants) == among]

    return {
        "nodes": [
            {
                "id": number,
                "name": _name(node.name),
                "op": _name(node.op_type),
                "domain": _name(node.domain),
                "custom": node.domain not in OF_ONNX_RUNTIME,
                "inputs": names(node.input, False),
                "constants": names(node.input, True),
                "outputs": [_name(name) for name in node.output if name],
                "attributes": {_name(attribute.name): _text(attribute) for attribute in node.attribute},
            }
            for number, node in enumerate(graph.node[:_MOST_NODES])
        ],
        "inputs": names((tensor.name for tensor in graph.input), False),
        "outputs": [_name(tensor.name) for tensor in graph.output],
        "left_out": max(0, len(graph.node) - _MOST_NODES),
        "custom_ops": sorted((_name(domain), _name(op)) for domain, op in custom),
    }


def _name(name: str | bytes) -> str:
    """Returns a name as text. protobuf gives bytes for what is no UTF-8."""
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


def _text(attribute: Any) -> str:
    kinds = onnx.AttributeProto
    if attribute.type in (kinds.GRAPH, kinds.GRAPHS):
        return "a graph"
    if attribute.type == kinds.TENSOR:
        number = attribute.t.data_type
        kind = onnx.TensorProto.DataType.Name(number) if number in onnx.TensorProto.DataType.values() else str(number)
        return f"a tensor of {kind.lower()}, shape {list(attribute.t.dims)}"
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, list):
        value = [_name(each) if isinstance(each, (str, bytes)) else each for each in value[:_MOST_TEXT]]
    text = _name(value) if isinstance(value, (str, bytes)) else str(value)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def main() -> None:
    """Reads a list of paths from standard input, and writes a line with the graph of each, null if it can't be read."""
    for path in json.load(sys.stdin):
        try:
            line = json.dumps(read_graph(Path(path)))
        except Exception:  # a broken file may raise whatever onnx and protobuf raise
            line = "null"
        print(line, flush=True)


if __name__ == "__main__":
    main()
