"""Attaches to a network that reads: a text in, labels, spans or a vector out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from opgate.attach.model import examples, graph, labels, network_file, post, takes
from opgate.attach.model.attached import Attached, attached
from opgate.attach.model.head import Head
from opgate.attach.model.network_file import Feed, Input, NetworkFile
from opgate.attach.model.nodes import Nodes
from opgate.attach.model.report import AttachError, Report, did_you_mean
from opgate.attach.model.wish import Wish
from opgate.attach.texts import text_heads, tokenizer_files
from opgate.attach.texts.text_heads import COUNT, IDS, MASK, OFFSETS, SPECIAL, TYPES
from opgate.onnx_tools.row_dependence import ROWS, Rows, compared
from opgate.onnx_tools.sessions import one_line, session
from opgate.ops_build.case import Array
from opgate.ops_build.dtypes import DTYPES

#: How many tokens a text has at most, if nothing says it.
MAX_LENGTH = 512
_MOST_TOKENS = 1 << 20
#: Lengths of texts in characters. Those between two of them share a batch.
_BUCKETS = "64,256,1024,4096"
_MAX_BATCH_SIZE = 16
#: Files beside a network that hold its tokenizer.
_FILES = ("tokenizer.json", "vocab.txt")
_ALONE = ("pair", "cased", "bare")
#: A few texts of several lengths and scripts, with which a network is tried.
_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Berlin",
    "An answer in 3 parts: yes, no, and perhaps; nobody knows why, but everybody asks.",
    "Größe, café, 東京, Москва!",
)


@dataclass(frozen=True, slots=True)
class Tokens:
    """How a text becomes tokens: the tokenizer.json as a text, the most tokens, whether each text has a second one, and
    whether special tokens stand around it."""

    tokenizer: str
    most: int
    pair: bool = False
    special: bool = True


@dataclass(frozen=True, slots=True)
class Roles:
    """The inputs of a network by what they take. A network may have no mask and no types."""

    ids: Input
    mask: Input | None = None
    types: Input | None = None

    @property
    def length(self) -> int | None:
        """How many tokens the network takes, None for any number."""
        return self.ids.shape[1]

    def feed(self, ids: Array, mask: Array, types: Array) -> Feed:
        """Returns what the network gets of i64 [n, s], with zeros behind them if it takes more."""
        missing = (self.length or ids.shape[1]) - ids.shape[1]
        ids, mask, types = (np.pad(each, ((0, 0), (0, missing))) for each in (ids, mask, types))
        given = ((self.ids, ids), (self.mask, mask), (self.types, types))
        return {each.name: values.astype(DTYPES[each.dtype].numpy) for each, values in given if each is not None}


def wanted(wish: Wish, network: NetworkFile) -> bool:
    """Returns whether --pre names the file of a tokenizer, or one lies beside a network that takes tokens."""
    first = wish.pre.split()[:1]
    if first:
        name = first[0].partition(":")[0]
        return name.endswith((".json", ".txt", ".model")) or name in ("tokenizer", *_ALONE)
    return _found(network) is not None and all(
        each.dtype in ("i32", "i64") and len(each.shape) == 2 for each in network.inputs.values()
    )


def _found(network: NetworkFile) -> Path | None:
    return next((path for name in _FILES if (path := network.path.parent / name).is_file()), None)


def attach(wish: Wish, name: str, network: NetworkFile, report: Report) -> Attached:
    """Makes the model `name`. Raises AttachError, RunError and SessionError."""
    roles = _roles(network)
    tokens = _tokens(wish.pre, network, roles, report)
    tokenize = partial(_tokenized, tokens, wish.libraries)
    feeds = [roles.feed(*tokenize([text])) for text in _TEXTS]
    ran = network_file.outputs(network, feeds[0], "a text")
    _, config = network.beside("config.json")
    said, found = post.settled(wish.post, ran, text_heads.HEADS, text_heads.usual(ran, config), report)
    beside = ("config.json", labels.of_config_object(config) or [])
    stated = labels.read(wish.labels, network.metadata, said.kind, report, beside=beside)
    opened, batched, why = _open_batch(network, roles, tokenize, report)
    before, after = (Nodes(graph.opset_of(network.model), prefix, graph.STATUS) for prefix in (graph.PRE, graph.POST))
    _add(before, tokens, roles)
    others = network_file.tried(network, lambda: iter(feeds))
    head = Head(network, found, (0, 0), said, stated, report, others, fixed=not batched)
    answers, classes = text_heads.add(after, head, config, feeds[0][roles.ids.name].shape[1])
    fitted = labels.fitted(stated, classes, said.kind, 0, report)
    if fitted is not None and said.kind == "spans":
        fitted = text_heads.without_prefixes(fitted)
    batch = network_file.batch_size(wish.max_batch_size, _MAX_BATCH_SIZE, batched, why, report, answers)
    made = attached(name, _takes(tokens, batch), opened.model, (before, after), answers, batch, fitted, report)
    network_file.compare(network, made.model, feeds, "texts", report)
    return made


def _roles(network: NetworkFile) -> Roles:
    """Returns which input takes what, by their names. Raises AttachError."""
    roles: dict[str, Input] = {}
    for each in network.inputs.values():
        name = each.name.lower()
        role = "mask" if "mask" in name else "types" if "type" in name or "segment" in name else "ids"
        if role in roles or each.dtype not in ("i32", "i64", "f32") or len(each.shape) != 2:
            expected = "the ids of tokens, a mask and types, integers [n, tokens]"
            more = " A network that generates text step by step is served from a model.py" if "past" in name else ""
            raise AttachError(f"{network.path.name}: expected {expected}, got {network.described}.{more}")
        roles[role] = each
    if "ids" not in roles:
        raise AttachError(f"{network.path.name}: expected an input for the ids of tokens, got {network.described}")
    return Roles(**roles)


def _tokens(pre: str, network: NetworkFile, roles: Roles, report: Report) -> Tokens:
    """Returns how a text becomes tokens. Raises AttachError."""
    words = pre.split()
    alone = [word for word in words if word in _ALONE]
    files = [word for word in words if word not in _ALONE]
    if len(files) > 1 or len(set(alone)) < len(alone):
        raise AttachError(f"--pre: expected a file and words such as {', '.join(_ALONE)}, got '{pre}'")
    place, most = files[0] if files else "", ""
    if place.rpartition(":")[2].isdecimal():
        place, _, most = place.rpartition(":")
    path = Path(place) if place else _found(network)
    if path is None or not path.is_file():
        near = did_you_mean(path.name, [each.name for each in path.parent.glob("*")]) if path else ""
        raise AttachError(f"--pre: there is no file '{place}': expected a tokenizer.json or a vocab.txt.{near}")
    (report.said if place else report.found)("tokenizer", path.name, "" if place else "beside the network")
    if most and not 1 <= int(most) <= _MOST_TOKENS:
        raise AttachError(f"--pre: expected {path.name}:1 to {path.name}:{_MOST_TOKENS} tokens, got {most}")
    tokenizer = tokenizer_files.read(path, cased="cased" in alone)
    length = roles.length
    if most:
        report.said("tokens at most", most)
    elif length is not None:
        report.found("tokens", length, f"the shape of {roles.ids.name}")
    else:
        report.default("tokens at most", tokenizer_files.most(path, tokenizer, MAX_LENGTH))
    count = int(most or length or tokenizer_files.most(path, tokenizer, MAX_LENGTH))
    if length is not None and count > length:
        raise AttachError(f"--pre: {count} tokens are more than {roles.ids} takes")
    if "pair" in alone:
        report.said("inputs", "text and pair")
    return Tokens(tokenizer, count, "pair" in alone, "bare" not in alone)


def _tokenized(tokens: Tokens, libraries: Sequence[Path], texts: Sequence[str]) -> tuple[Array, Array, Array]:
    """Returns ids, mask and types i64 [n, s] of texts, each with itself as its pair if it has one."""
    nodes = Nodes(18, "tokens/")
    given = ["tokens/ids", "tokens/mask", "tokens/types"]
    _tokenize(nodes, tokens, given)
    inputs = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n", 1]) for name in _names(tokens)]
    outputs = [
        helper.make_tensor_value_info(f"tokens/{name}", TensorProto.INT64, ["n", "s"])
        for name in ("ids", "mask", "types")
    ]
    made = helper.make_graph(nodes.nodes, "tokens", inputs, outputs, list(nodes.constants.values()))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("opgate", 1)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=8)
    column = np.array(texts, object).reshape(-1, 1)
    ids, mask, types = session(model, libraries).run(None, dict.fromkeys(_names(tokens), column))
    return ids, mask, types


def _names(tokens: Tokens) -> list[str]:
    return ["text", "pair"] if tokens.pair else ["text"]


def _tokenize(nodes: Nodes, tokens: Tokens, outputs: Sequence[str]) -> None:
    flat = [nodes.reshape(name, [-1], f"{name}.flat") for name in _names(tokens)]
    attributes = {
        "tokenizer": tokens.tokenizer,
        "max_length": tokens.most,
        "add_special_tokens": int(tokens.special),
    }
    nodes.add_op("Tokenize", flat, outputs, "tokens", **attributes)


def _add(nodes: Nodes, tokens: Tokens, roles: Roles) -> None:
    """Adds the nodes from texts to the inputs of the network. One of a fixed size gets what padding has."""
    padding = {IDS: _pad_id(tokens), MASK: 0, TYPES: 0, OFFSETS: 0, SPECIAL: 1}
    fixed = roles.length is not None
    _tokenize(nodes, tokens, [f"{name}.short" for name in padding] if fixed else [*padding])
    if roles.length is not None:
        for name, value in padding.items():
            pad = nodes.constant("pad", value, np.int32 if name == OFFSETS else np.int64)
            nodes.fitted(f"{name}.short", 3 if name == OFFSETS else 2, 1, roles.length, pad, "padded", to=name)
    for name, each in ((IDS, roles.ids), (MASK, roles.mask), (TYPES, roles.types)):
        if each is not None:
            number = {"i64": TensorProto.INT64, "i32": TensorProto.INT32, "f32": TensorProto.FLOAT}[each.dtype]
            nodes.cast(name, number, "typed", to=each.name)
            sizes = [takes.BATCH, roles.length or "tokens"]
            nodes.shapes.append(helper.make_tensor_value_info(each.name, number, sizes))
    _add_status(nodes)


def _add_status(nodes: Nodes) -> None:
    """Adds the status of each row: 1 for a text without tokens, because a mean over none is no number."""
    nodes.reduce("ReduceSum", MASK, 1, "tokens.count", keepdims=False, to=COUNT)
    none = nodes.add("Equal", [COUNT, nodes.constant("none", 0, np.int64)], "tokens.none")
    nodes.cast(none, TensorProto.INT32, "tokens.status", to=graph.STATUS)


def _pad_id(tokens: Tokens) -> int:
    return int((json.loads(tokens.tokenizer).get("padding") or {}).get("pad_id") or 0)


def _open_batch(
    network: NetworkFile,
    roles: Roles,
    tokenize: Callable[[Sequence[str]], tuple[Array, Array, Array]],
    report: Report,
) -> tuple[NetworkFile, bool, str]:
    """Returns the network with an open batch, and true, if texts of several lengths alone give what they give
    together, where the shorter ones are padded. Otherwise returns it as it is, false and why."""
    texts = _TEXTS[:ROWS]
    opened, batched, why = network_file.open_batch(network, roles.feed(*tokenize(texts)), report)
    if not batched or roles.length is not None:
        return opened, batched, why
    if roles.mask is None:
        report.proved("batch: one text at a time: without a mask, a longer text beside it would change an answer")
        return network, False, "without a mask, a longer text beside it would change an answer"
    try:
        running = opened.open(opened.model)
        names = [output.name for output in running.get_outputs()]
        together = dict(zip(names, running.run(names, dict(roles.feed(*tokenize(texts)))), strict=True))
        feeds = [roles.feed(*tokenize([text])) for text in texts]
        alone = [dict(zip(names, running.run(names, dict(feed)), strict=True)) for feed in feeds]
    except Exception as error:  # the classes of onnxruntime's exceptions share no other base
        return network, False, one_line(error)
    rows = _padding_counts(together, alone)
    if not rows.independent:
        report.proved(f"batch: one text at a time: {rows.why}")
        return network, False, rows.why
    report.proved(f"padding: {rows.why}")
    return opened, True, ""


def _padding_counts(together: Mapping[str, Array], alone: Sequence[Mapping[str, Array]]) -> Rows:
    """Compares texts of several lengths alone with those that are padded. What belongs to padding is left out."""
    padded = [
        {name: _like(each[name], joined[row : row + 1]) for name, joined in together.items()}
        for row, each in enumerate(alone)
    ]
    rows = compared(together, padded)
    return Rows(rows.independent, rows.why.replace("random rows", "texts of several lengths"))


def _like(value: Array, row: Array) -> Array:
    """Returns a value with what a longer row has behind its end."""
    if value.shape == row.shape:
        return value
    wide = row.copy()
    wide[tuple(slice(size) for size in value.shape)] = value
    return wide


def _takes(tokens: Tokens, batch: int) -> takes.Takes:
    names = _names(tokens)
    sample = dict(zip(names, ("Berlin is the capital of Germany.", "What is the capital?"), strict=False))
    inputs = [helper.make_tensor_value_info(name, TensorProto.STRING, [takes.BATCH, 1]) for name in names]
    config = [f'input {{ name: "{name}" data_type: TYPE_STRING dims: [ 1 ] }}' for name in names]
    if batch > 1:
        buckets = ";".join(f"{name}={_BUCKETS}" for name in names)
        config.append(f'parameters {{ key: "length_buckets" value {{ string_value: "{buckets}" }} }}')
    return takes.Takes(
        "text",
        inputs,
        config,
        graph.STATUS,
        sample,
        "this text",
        takes.json_sent(sample),
        " ".join(f"-F {name}='...'" for name in names),
        statuses="1=the text has no tokens: expected a text that is not empty",
        wrong="Several texts are a JSON array of objects.",
        examples=lambda place: examples.lines(place, names),
    )
