"""The Python walk over a signature, tested with the cases that the C++ core runs too (tests/ops_build/kernel_toolkit)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from opgate.ops_build.onnx.schema import GraphSizes
from opgate.ops_build.op_table import Op, SignatureError, parse_signature
from opgate.ops_build.signature_walk import KnownInput, SignatureMismatch, Size, Sizes, Walk

CASES = Path(__file__).parent / "walk_cases.txt"


@dataclass
class WalkCase:
    title: str
    signature: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    attributes: dict[str, int] = field(default_factory=dict)
    error: str = ""


def walk_cases() -> list[WalkCase]:
    cases: list[WalkCase] = []
    for line in CASES.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        key, _, rest = line.partition(" ")
        if key == "==":
            cases.append(WalkCase(rest))
        elif key == "in":
            cases[-1].inputs = rest.split()
        elif key == "out":
            cases[-1].outputs = rest.split()
        elif key == "attr":
            cases[-1].attributes = {name: int(value) for name, value in (word.split("=") for word in rest.split())}
        elif key == "error":
            cases[-1].error = rest
        else:
            cases[-1].signature = line
    return cases


SHARED = walk_cases()


def known_input(text: str, size_of: Callable[[str], Size]) -> KnownInput | None:
    if text == "-":
        return None
    dtype, dims, value = re.fullmatch(r"(\w+)\[(.*)\](?:=(-?\d+))?", text).groups()
    sizes = None if dims == "*" else [size_of(dim) for dim in dims.split(",") if dim]
    return KnownInput(dtype, sizes, None if value is None else int(value))


def described(walk: Walk, sizes: Sizes) -> list[str]:
    """Returns the outputs as texts, as the cases write them."""

    def text(size: Size) -> str:
        return "?" if size is None else sizes.text(size)

    outputs = []
    for output in walk.op.outputs:
        dims = walk.output_dims(output)
        if dims is None:
            outputs.append(f"{walk.type_of(output)}[*]")
            continue
        texts = [text(size) for size in dims]
        bounded = [dim for dim in output.dims if dim["kind"] == "bounded"]
        for position, dim in enumerate(output.dims if bounded else ()):  # no case has ... beside a bounded dim
            if dim["kind"] == "bounded":
                texts[position] = f"{dim['name']}<={text(walk.bound_of(dim['name']))}"
        outputs.append(f"{walk.type_of(output)}[{','.join(texts)}]")
    return outputs


def run_case(op: Op, case: WalkCase, sizes: Sizes, size_of: Callable[[str], Size]) -> list[str]:
    walk = Walk(op, sizes)
    integers = {a.name: case.attributes.get(a.name, a.default) for a in op.attributes if a.kind == "int"}
    walk.bind([known_input(text, size_of) for text in case.inputs], integers)
    for name in walk.kernel_sizes:
        walk.bound_of(name)
        walk.set_kernel_size(name, size_of(name))
    return described(walk, sizes)


def check(op: Op, case: WalkCase, sizes: Sizes, size_of: Callable[[str], Size]) -> None:
    try:
        outputs = run_case(op, case, sizes, size_of)
    except SignatureMismatch as error:
        assert str(error) == case.error
    else:
        assert (outputs, "") == (case.outputs, case.error)


@pytest.mark.parametrize("case", SHARED, ids=lambda case: case.title)
def test_shared_cases_over_the_sizes_of_a_graph(library: Path, case: WalkCase) -> None:
    def size_of(text: str) -> Size:
        return int(text) if text.lstrip("-").isdigit() else None if text == "?" else text

    check(parse_signature(library, case.signature), case, GraphSizes(), size_of)


# torch knows every rank, and has a symbol for every unknown value.
@pytest.mark.parametrize(
    "case",
    [case for case in SHARED if not any("[*]" in text or text.endswith("[]") for text in case.inputs)],
    ids=lambda case: case.title,
)
def test_shared_cases_over_the_sizes_of_torch(library: Path, case: WalkCase) -> None:
    """A name is a symbol, and so is every "?", because torch has a symbol for each unknown size. Where a case expects
    "?" for an expression, torch knows the expression: NamedSizes writes "?" for it."""
    pytest.importorskip("torch")
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from opgate.ops_build.adapters.torch.fake import TorchSizes

    shape_env = ShapeEnv()
    names: dict[str, Any] = {}

    def size_of(text: str) -> Size:
        if text.lstrip("-").isdigit():
            return int(text)
        if text not in names or text == "?":
            names[text] = shape_env.create_unbacked_symint()
            shape_env.unbacked_inputs.add(names[text].node.expr)  # torch replaces only symbols of inputs by others
        return names[text]

    def exact(size: Size) -> Any:
        """Returns a number, or an expression after torch has replaced the symbols that it knows."""
        return size if isinstance(size, int) else shape_env.replace(size.node.expr)

    class NamedSizes(TorchSizes):
        def text(self, size: Size) -> str:
            equal = [name for name, symbol in names.items() if exact(symbol) == exact(size)]
            named = [name for name in equal if name != "?"]
            return str(size) if isinstance(size, int) else named[0] if named else "?"

    check(parse_signature(library, case.signature), case, NamedSizes(), size_of)


def test_the_cases_cover_the_grammar(library: Path) -> None:
    ops = [parse_signature(library, case.signature) for case in SHARED]
    inputs, outputs = [t for op in ops for t in op.inputs], [t for op in ops for t in op.outputs]
    assert {dim["kind"] for t in inputs for dim in t.dims} == {"ellipsis", "any", "name", "expr"}
    assert {dim["kind"] for t in outputs for dim in t.dims} == {"ellipsis", "expr", "bounded"}
    assert any(t.optional for t in inputs) and any(t.variadic for t in inputs) and any(t.const for t in inputs)
    assert any("default" in dim for t in inputs for dim in t.dims) and any(op.type_variables for op in ops)
    operations = {dim["expr"][0] for t in outputs for dim in t.dims if isinstance(dim.get("expr"), list)}
    assert operations == {"+", "-", "*", "/", "%", "min", "max", "ceildiv"}
    assert sum(bool(case.error) for case in SHARED) > 25


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("X(a: f32[n], b?: f32[m=k], c?: f32[k=n]) -> (y: f32[m])", 24, "size 'k' is unknown when the optional input"),
        ("X(a: f32[n], b?: f32[k], c?: f32[m=k]) -> (y: f32[m])", 36, "size 'k' is unknown when the optional input"),
    ],
)
def test_a_default_uses_only_sizes_that_are_bound_before_it(
    library: Path, text: str, column: int, message: str
) -> None:
    with pytest.raises(SignatureError, match=message) as refused:
        parse_signature(library, text)
    assert refused.value.column == column
