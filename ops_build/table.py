"""The op table as a library has it: what `opgate_table` of the compiled code says, as Python values.

The signature is parsed in one place, the C++ core; this module reads the result.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: An expression over named sizes: a number, a name, or [operator, left, right].
Expr = int | str | list[Any]


@dataclass(frozen=True, slots=True)
class Input:
    name: str
    type: str  # a dtype's name or a type variable's
    dims: list[dict[str, Any]]
    optional: bool
    variadic: bool
    const: bool


@dataclass(frozen=True, slots=True)
class Output:
    name: str
    type: str
    dims: list[dict[str, Any]]
    optional: bool

    @property
    def data_dependent(self) -> bool:
        """A size of it is known only after the kernel has run, and bound here."""
        return any(dim["kind"] == "bounded" for dim in self.dims)


@dataclass(frozen=True, slots=True)
class Attribute:
    name: str
    kind: str  # int, float, bool, str or choice
    list: bool
    required: bool
    length: int | None = None
    choices: tuple[str, ...] = ()
    default: Any = None


@dataclass(frozen=True, slots=True)
class Op:
    domain: str
    name: str
    signature: str
    doc: str
    since_version: int
    devices: tuple[str, ...]
    type_variables: Mapping[str, tuple[str, ...]]
    inputs: tuple[Input, ...]
    attributes: tuple[Attribute, ...]
    outputs: tuple[Output, ...]

    def type_choices(self) -> Iterator[dict[str, str]]:
        """Every choice of dtypes for the type variables; one empty choice where there are none."""
        for dtypes in itertools.product(*self.type_variables.values()):
            yield dict(zip(self.type_variables, dtypes, strict=True))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that inputs and outputs can have, in the signature's order."""
        found: dict[str, None] = {}
        for name in self.tensor_types:
            found.update(dict.fromkeys(self.type_variables.get(name, (name,))))
        return tuple(found)

    @property
    def tensor_types(self) -> tuple[str, ...]:
        """The types of the inputs, then of the outputs: dtypes and type variables."""
        return (*(tensor.type for tensor in self.inputs), *(tensor.type for tensor in self.outputs))

    @property
    def elementwise(self) -> bool:
        """Whether every tensor is `[...]`: element i of an output is made of the elements i of the inputs."""
        tensors: tuple[Input | Output, ...] = (*self.inputs, *self.outputs)
        return bool(self.inputs) and all([dim["kind"] for dim in tensor.dims] == ["ellipsis"] for tensor in tensors)


def snake_case(name: str) -> str:
    """An op's name as its folder and PyTorch have it: KNNQuery is knn_query."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class SignatureError(ValueError):
    """A signature that the parser refuses; `column` counts from 1."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(f"column {column}: {message}")
        self.column = column


def read_table(library: Path) -> list[Op]:
    """The ops of a compiled op library, sorted by name. Raises ValueError where the library states an op wrongly and
    OSError where it can't be loaded."""
    return _ops(_call(library, "opgate_table"), library.name)


def parse_table(text: str, origin: str) -> list[Op]:
    """The ops of a table's JSON; `origin` names where it comes from. Raises ValueError as read_table does."""
    return _ops(json.loads(text), origin)


def _ops(table: Mapping[str, Any], origin: str) -> list[Op]:
    if table["errors"]:
        raise ValueError(f"{origin}: " + "; ".join(table["errors"]))
    return [_op(table["domain"], entry) for entry in table["ops"]]


def parse_signature(library: Path, text: str) -> Op:
    """A signature parsed by the core that `library` carries. Raises SignatureError."""
    parsed = _call(library, "opgate_parse_signature", text.encode())
    if "error" in parsed:
        raise SignatureError(parsed["error"], parsed["column"])
    return _op("", {**parsed, "doc": "", "since_version": 1, "devices": []})


def _call(library: Path, name: str, *arguments: bytes) -> Any:
    """The JSON that an exported function of the library returns. A copy is loaded: the loader knows a library by its
    path, and would give the old one after a rebuild."""
    with tempfile.TemporaryDirectory() as folder:
        function = getattr(ctypes.CDLL(shutil.copy(library, folder)), name)
        function.restype = ctypes.c_char_p
        function.argtypes = [ctypes.c_char_p] * len(arguments)
        return json.loads(function(*arguments).decode(errors="replace"))


def _op(domain: str, entry: Mapping[str, Any]) -> Op:
    return Op(
        domain=domain,
        name=entry["name"],
        signature=" ".join(entry["signature"].split()),
        doc=entry["doc"],
        since_version=entry["since_version"],
        devices=tuple(entry["devices"]),
        type_variables={variable["name"]: tuple(variable["dtypes"]) for variable in entry["type_variables"]},
        inputs=tuple(Input(**tensor) for tensor in entry["inputs"]),
        attributes=tuple(_attribute(attribute) for attribute in entry["attributes"]),
        outputs=tuple(Output(**tensor) for tensor in entry["outputs"]),
    )


def _attribute(entry: Mapping[str, Any]) -> Attribute:
    default = entry.get("default")
    if entry["kind"] == "float" and default is not None:  # JSON knows one kind of number: 0 is 0.0
        default = [float(value) for value in default] if entry["list"] else float(default)
    return Attribute(**{**entry, "choices": tuple(entry.get("choices", ())), "default": default})
