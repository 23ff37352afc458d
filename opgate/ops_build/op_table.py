"""The op table of a compiled library as Python objects.

Only the C++ core parses signatures. This module reads the JSON that the library's `opgate_table` returns.
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

from opgate import folders

#: An expression over named sizes: a number, a name, or [operator, left, right].
Expr = int | str | list[Any]


@dataclass(frozen=True, slots=True)
class Input:
    name: str
    type: str  # the name of a dtype or of a type variable
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
    on_request: bool = False  # optional, and PyTorch's function leaves it out

    @property
    def data_dependent(self) -> bool:
        """Whether one of the sizes is known only after the kernel has run, such as v of `v<=n`."""
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

    def check(self, value: Any) -> None:
        """Raises ValueError if an element of a list of strings has a line feed. An ONNX node stores the list as one
        string with an element per line."""
        if self.kind != "str" or not self.list:
            return
        for element in value:
            if "\n" in element:
                escaped = element.replace("\n", "\\n")
                raise ValueError(f"attribute '{self.name}': expected elements without line feeds, got '{escaped}'")


@dataclass(frozen=True, slots=True)
class Op:
    """An op of the table. `devices` are those that it has a kernel for, `prepares` those where its kernel prepares.
    `gradient` is the text of its gradient.py, empty without one."""

    domain: str
    name: str
    signature: str
    doc: str
    since_version: int
    devices: tuple[str, ...]
    prepares: tuple[str, ...]
    type_variables: Mapping[str, tuple[str, ...]]
    inputs: tuple[Input, ...]
    attributes: tuple[Attribute, ...]
    outputs: tuple[Output, ...]
    gradient: str = ""

    def type_choices(self) -> Iterator[dict[str, str]]:
        """Yields every choice of dtypes for the type variables, and one empty choice if there are no type variables."""
        for dtypes in itertools.product(*self.type_variables.values()):
            yield dict(zip(self.type_variables, dtypes, strict=True))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that inputs and outputs can have, in the signature's order."""
        names: dict[str, None] = {}
        for name in self.tensor_types:
            names.update(dict.fromkeys(self.type_variables.get(name, (name,))))
        return tuple(names)

    @property
    def tensor_types(self) -> tuple[str, ...]:
        """The types of the inputs, then those of the outputs. A type is a dtype or a type variable."""
        return (*(tensor.type for tensor in self.inputs), *(tensor.type for tensor in self.outputs))

    @property
    def elementwise(self) -> bool:
        """Whether every tensor has the dims `[...]`, so that element i of an output depends only on element i of each
        input."""
        tensors: tuple[Input | Output, ...] = (*self.inputs, *self.outputs)
        return bool(self.inputs) and all([dim["kind"] for dim in tensor.dims] == ["ellipsis"] for tensor in tensors)


def snake_case(name: str) -> str:
    """Returns an op's name in snake_case, as its folder and PyTorch call it: knn_query for KNNQuery."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class SignatureError(ValueError):
    """The parser refused a signature. `column` counts from 1."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(f"column {column}: {message}")
        self.column = column


def read_table(library: Path) -> list[Op]:
    """Returns the ops of a compiled op library, sorted by name.

    Raises ValueError if the library states an op wrongly or isn't opgate's, and OSError if it can't be loaded.
    """
    return _ops(_call(library, "opgate_table"), library.name)


def loaded_table(library: Path) -> list[Op]:
    """Returns the ops of a library that the process has loaded from this path, as read_table does."""
    return _ops(_ask(ctypes.CDLL(str(library)), library, "opgate_table"), library.name)


def cpu_level(library: Path) -> str:
    """Returns the instruction set whose kernels a library uses on this processor: "baseline" or a level such as
    "x86-64-v3". Raises OSError if the library can't be loaded."""
    level: str = _call(library, "opgate_table")["cpu_level"]
    return level


def parse_table(text: str, origin: str) -> list[Op]:
    """Returns the ops of a table in JSON. `origin` names its source in error messages. Raises ValueError if an op is
    stated wrongly."""
    return _ops(json.loads(text), origin)


def _ops(table: Mapping[str, Any], origin: str) -> list[Op]:
    if table["errors"]:
        raise ValueError(f"{origin}: " + "; ".join(table["errors"]))
    return [_op(table["domain"], entry) for entry in table["ops"]]


def parse_signature(library: Path, text: str) -> Op:
    """Parses a signature with the C++ core in `library`. Raises SignatureError."""
    parsed = _call(library, "opgate_parse_signature", text.encode())
    if "error" in parsed:
        raise SignatureError(parsed["error"], parsed["column"])
    return _op("", {**parsed, "doc": "", "since_version": 1, "devices": [], "prepares": []})


def _call(library: Path, name: str, *arguments: bytes) -> Any:
    """Calls an exported function of the library and returns the JSON that it gives.

    This loads a copy of the library. The loader knows a library by its path: after a rebuild it would return the old
    one, which is still loaded.
    """
    folders.load_shipped_dependencies()  # the library may be that of a wheel
    with tempfile.TemporaryDirectory() as folder:
        return _ask(ctypes.CDLL(shutil.copy(library, folder)), library, name, *arguments)


def _ask(loaded: ctypes.CDLL, library: Path, name: str, *arguments: bytes) -> Any:
    function = getattr(loaded, name, None)
    if function is None:
        raise ValueError(f"{library} exports no {name}: expected an op library that opgate built")
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
        prepares=tuple(entry["prepares"]),
        type_variables={variable["name"]: tuple(variable["dtypes"]) for variable in entry["type_variables"]},
        inputs=tuple(Input(**tensor) for tensor in entry["inputs"]),
        attributes=tuple(_attribute(attribute) for attribute in entry["attributes"]),
        outputs=tuple(Output(**tensor) for tensor in entry["outputs"]),
        gradient=entry.get("gradient", ""),
    )


def _attribute(entry: Mapping[str, Any]) -> Attribute:
    default = entry.get("default")
    if entry["kind"] == "float" and default is not None:  # json reads 0 as an int
        default = [float(value) for value in default] if entry["list"] else float(default)
    return Attribute(**{**entry, "choices": tuple(entry.get("choices", ())), "default": default})
