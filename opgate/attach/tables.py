"""Attaches to a model of a table: a row of named columns in, classes with their names or a value out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from opgate.attach.model import examples, graph, heads_without_boxes, labels, network_file, post, takes, words
from opgate.attach.model.attached import Attached, attached
from opgate.attach.model.head import Head
from opgate.attach.model.network_file import Feed, Input, NetworkFile
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.outputs import Output
from opgate.attach.model.report import AttachError, Report
from opgate.attach.model.wish import Wish
from opgate.onnx_tools.row_dependence import ROWS
from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES

#: The domain of the operators that scikit-learn's converters write.
ML = "ai.onnx.ml"
#: The heads that go with a table.
HEADS = ("classify", "value", "outputs", "embed")
_MAX_BATCH_SIZE = 64
_AMERICAN = ("en_us", "en_us.utf-8", "en_us.utf8")
_TYPES = {
    "f32": (TensorProto.FLOAT, "TYPE_FP32"),
    "f64": (TensorProto.DOUBLE, "TYPE_FP64"),
    "i64": (TensorProto.INT64, "TYPE_INT64"),
    "i32": (TensorProto.INT32, "TYPE_INT32"),
    "bool": (TensorProto.BOOL, "TYPE_BOOL"),
    "str": (TensorProto.STRING, "TYPE_STRING"),
}
#: What stands for a value of each type in a sample.
_SAMPLES: Mapping[str, Any] = {"f32": 1.5, "f64": 1.5, "i64": 1, "i32": 1, "bool": True, "str": "text"}


def _names(word: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise AttachError(f"--pre: expected different names such as {word}:age,income,city, got '{word}:{text}'")
    return names


def _read(pre: str) -> list[str] | None:
    """Returns the names of the columns, None if --pre has none. A name may have spaces: the word goes to the end."""
    name, colon, names = pre.strip().partition(":")
    if name == "columns" and colon:
        return _names(name, names)
    words.read(pre, {}, {"columns": "columns"})
    return None


def wanted(wish: Wish, network: NetworkFile) -> bool:
    """Returns whether --pre, or the operators of a file whose inputs are columns, say that it takes a row of a
    table."""
    if wish.pre:
        return wish.pre.split()[0].partition(":")[0] == "columns"
    ranks = {len(each.shape) for each in network.inputs.values()}
    return ranks <= {1, 2} and any(node.domain == ML for node in network.model.graph.node)


def attach(wish: Wish, name: str, network: NetworkFile, report: Report) -> Attached:
    """Makes the model `name`. Raises AttachError, RunError and SessionError."""
    names = _read(wish.pre)
    network, zipped, maps = _unzipped(_without_tensors(network, names or ()), report)
    columns = _columns(network, names, report)
    rng = np.random.default_rng(0)

    def feed(rows: int, scale: float = 1) -> Feed:
        return {each.name: _values(each, rows, scale, rng) for each in network.inputs.values()}

    def feeds() -> Iterator[Feed]:
        yield from (feed(1, scale) for scale in (1, 0.01, 100, 1e4))

    ran = network_file.outputs(network, feed(1), "a row")
    head_post, found = post.settled(wish.post, ran, HEADS, _usual(ran, zipped or wish.labels), report)
    found = _scored(found, head_post.kind)
    stated = labels.read(
        wish.labels, network.metadata, head_post.kind, report, beside=("its operators", list(map(str, zipped)))
    )
    opened, batched, why = network_file.open_batch(network, feed(ROWS), report)
    before, after = (Nodes(graph.opset_of(network.model), prefix, graph.STATUS) for prefix in (graph.PRE, graph.POST))
    _add(before, network, columns)
    others = network_file.tried(network, feeds)
    head = Head(network, found, (0, 0), head_post, stated, report, others, fixed=not batched)
    answers, classes = heads_without_boxes.add(after, head)
    fitted = labels.fitted(stated, classes, head_post.kind, 0, report)
    batch = network_file.batch_size(wish.max_batch_size, _MAX_BATCH_SIZE, batched, why, report, answers)
    made = attached(name, _takes(network, columns), opened.model, (before, after), answers, batch, fitted, report)
    network_file.compare(
        network, made.model, list(feeds()), "rows", report, lambda ran: _without_maps(ran, maps, zipped)
    )
    return made


def _without_tensors(network: NetworkFile, names: Sequence[str]) -> NetworkFile:
    """Returns the network in which no tensor has the name of a column."""
    changed = onnx.ModelProto()
    changed.CopyFrom(network.original)
    graph.rename(changed, lambda name: f"{graph.NETWORK}{name}" if name in names else name)
    return network if changed == network.original else network_file.read(network.path, changed, network.libraries)


def _own_name(name: str) -> str:
    """Returns the name that an input has in its file."""
    own = name.removeprefix(graph.NETWORK)
    return own if graph.free_name(own) == name and "/" not in own else name


def _unzipped(network: NetworkFile, report: Report) -> tuple[NetworkFile, list[str | int], dict[str, str]]:
    """Returns the network whose maps of classes are tensors, the classes, none if it has none, and the names of the
    maps by those of the tensors."""
    network = _with_locales(network, report)
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    classes: list[str | int] = []
    maps: dict[str, str] = {}
    for node in list(model.graph.node):
        classes = classes or _classes(node)
        if node.op_type == "ZipMap" and node.domain == ML:
            model.graph.node.remove(node)
            maps[node.input[0]] = node.output[0]
            _rename_output(model, node.output[0], node.input[0], report)
    kept = [value for value in model.graph.output if value.type.HasField("tensor_type")]
    for value in model.graph.output:
        if not value.type.HasField("tensor_type"):
            report.found(value.name, "left out", "it is no tensor, and no ZipMap made it")
    del model.graph.output[:]
    model.graph.output.extend(kept)
    return network_file.with_model(network, model), classes, maps


def _with_locales(network: NetworkFile, report: Report) -> NetworkFile:
    """Returns the network whose StringNormalizers have the locale C.UTF-8 in place of en_US, which few containers have.
    Both have the same upper and lower case."""
    changed = onnx.ModelProto()
    changed.CopyFrom(network.original)
    found = False
    for node in changed.graph.node:
        stated = [attribute for attribute in node.attribute if attribute.name == "locale"]
        american = all(attribute.s.decode().lower() in ("", *_AMERICAN) for attribute in stated)
        if node.op_type == "StringNormalizer" and american:
            for attribute in stated:
                node.attribute.remove(attribute)
            node.attribute.append(helper.make_attribute("locale", "C.UTF-8"))
            found = True
    if not found:
        return network
    report.default("locale", "C.UTF-8", "in place of en_US.UTF-8, with the same upper and lower case")
    return network_file.read(network.path, changed, network.libraries)


def _without_maps(ran: dict[str, Any], maps: Mapping[str, str], classes: Sequence[str | int]) -> dict[str, Any]:
    """Returns the outputs of the file's network with a tensor for each map of classes, which ONNX Runtime gives as a
    dict for each row."""
    tensors = {
        tensor: np.array([[row[each] for each in classes] for row in ran[name]], np.float32)
        for tensor, name in maps.items()
        if name in ran
    }
    return {**ran, **tensors}


def _classes(node: onnx.NodeProto) -> list[str | int]:
    """Returns the classes in the attributes of a classifier."""
    for attribute in node.attribute:
        if attribute.name.startswith("classlabels_") and attribute.strings:
            return [text.decode("utf-8", "replace") for text in attribute.strings]
        if attribute.name.startswith("classlabels_") and attribute.ints:
            return list(attribute.ints)
    return []


def _rename_output(model: onnx.ModelProto, name: str, source: str, report: Report) -> None:
    """Makes the tensor `source` an output of the graph in place of the map `name`."""
    for value in model.graph.output:
        if value.name == name:
            value.CopyFrom(helper.make_tensor_value_info(source, TensorProto.FLOAT, None))
            report.found(name, f"the tensor {source}", "its ZipMap is left out")


def _columns(network: NetworkFile, names: Sequence[str] | None, report: Report) -> list[Input]:
    """Returns what a request has: the columns that --pre names, else the inputs. Raises AttachError."""
    for each in network.inputs.values():
        if each.dtype not in _TYPES or len(each.shape) not in (1, 2):
            raise AttachError(f"{network.path.name}: expected inputs [n, 1] or [n, columns], got {each}")
    inputs = [replace(each, name=_own_name(each.name)) for each in network.inputs.values()]
    if names is None:
        wide = [each for each in inputs if len(each.shape) == 2 and each.shape[1] != 1]
        report.found("columns", network.described)
        if wide:
            hint = f"the word columns:a,b,c in --pre names the {wide[0].shape[1] or ''} columns of {wide[0].name}"
            report.default("names of columns", "none", hint)
        return inputs
    if len(inputs) != 1:
        raise AttachError(f"--pre: columns: names those of one input, and the network has {network.described}")
    (only,) = inputs
    if only.shape[1:] not in ((len(names),), (None,)):
        raise AttachError(f"--pre: columns: has {len(names)} names, and the network takes {only}")
    report.said("columns", ", ".join(names))
    return [Input(each, only.dtype, (None, 1)) for each in names]


def _values(each: Input, rows: int, scale: float, rng: np.random.Generator) -> Array:
    shape = (rows, *(size or 1 for size in each.shape[1:]))
    if each.dtype == "str":
        return np.array([f"text {number}" for number in rng.integers(0, 100, np.prod(shape))], object).reshape(shape)
    if each.dtype in ("i32", "i64"):
        return rng.integers(0, 1 + int(max(1, scale)), shape).astype(DTYPES[each.dtype].numpy)
    return (rng.standard_normal(shape) * scale).astype(DTYPES[each.dtype].numpy)


def _usual(outputs: Sequence[Output], classes: object) -> str:
    """Returns the head that the outputs tell. `classes` says whether there are names of classes."""
    scores = [each for each in outputs if each.value.dtype.kind == "f"]
    if len(outputs) == 1 and len(scores) == 1 and scores[0].value.size == 1:
        return "value"
    return "classify" if classes and len(scores) == 1 and scores[0].value.ndim == 2 else "outputs"


def _scored(outputs: Sequence[Output], kind: str) -> Sequence[Output]:
    """Returns the outputs of scores alone for a classifier: the label is the best of them."""
    return [each for each in outputs if each.value.dtype.kind == "f"] if kind in ("classify", "value") else outputs


def _add(nodes: Nodes, network: NetworkFile, columns: Sequence[Input]) -> None:
    """Adds the columns as the inputs of the network, and a status of 0 for each row."""
    names = [each.name for each in columns]
    if len(names) > len(network.inputs):
        (only,) = network.inputs
        nodes.add("Concat", names, "row", to=only, axis=1)
    else:
        for column, name in zip(names, network.inputs, strict=True):
            if column != name:
                nodes.add("Identity", [column], "column", to=name)
    graph.add_status(nodes, names[0])


def _takes(network: NetworkFile, columns: Sequence[Input]) -> takes.Takes:
    inputs, config, sample = [], [], {}
    for each in columns:
        number, datatype = _TYPES[each.dtype]
        sizes = [-1 if size is None else size for size in each.shape[1:]]
        shape: list[int | str] = [takes.BATCH, *(f"{each.name}_columns" if size == -1 else size for size in sizes)]
        inputs.append(helper.make_tensor_value_info(each.name, number, shape))
        dims = f"dims: [ {', '.join(map(str, sizes or [1]))} ]" + ("" if sizes else " reshape { shape: [ ] }")
        config.append(f"input {{ name: {_quoted(each.name)} data_type: {datatype} {dims} }}")
        value = _SAMPLES[each.dtype]
        sample[each.name] = value if sizes in ([], [1]) else [value] * max(1, sizes[0])
    names = [each.name for each in columns]
    return takes.Takes(
        "row",
        inputs,
        config,
        graph.STATUS,
        sample,
        "this row",
        takes.json_sent(sample),
        "",
        wrong="Several rows are a JSON array of objects, or a CSV with a line of names: "
        "`-H 'Content-Type: text/csv' --data-binary @rows.csv`.",
        examples=lambda place: examples.rows(place, names, [each.name for each in columns if each.dtype == "str"]),
    )


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
