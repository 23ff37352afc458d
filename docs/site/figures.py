"""The figures of ops: the tensors that go in and come out, and the curve of an op that works on each element alone."""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np

from opgate.ops_build.adapters.numpy.functions import function
from opgate.ops_build.adapters.numpy.library import OpLibrary, load
from opgate.ops_build.op_functions import dims_text
from opgate.ops_build.op_table import Input, Op, Output, snake_case

_HEIGHT, _GAP, _ARROW, _CHARACTER = 26, 8, 56, 7.4
_INK, _LINE = "#1b2733", "#5b6b7b"


def figures(path: Path) -> dict[str, dict[str, tuple[str, str]]]:
    """Returns the figures of the ops of a library by the names of their folders: of each figure what it shows and the
    SVG, by its name."""
    library = load(path)
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for op in library.ops:
        own = found[snake_case(op.name)] = {"tensors": (f"The tensors of {op.name}", tensors_figure(op))}
        if curve := curve_figure(library, op):
            own["curve"] = (f"The output of {op.name} over x", curve)
    return found


def tensors_figure(op: Op) -> str:
    """Returns an SVG with the inputs of an op at its left and the outputs at its right. Those that may be left out have
    dashed boxes."""
    inputs, outputs = ([(tensor, _label(tensor)) for tensor in tensors] for tensors in (op.inputs, op.outputs))
    widths = [max([len(text) for _, text in side], default=0) * _CHARACTER + 18 for side in (inputs, outputs)]
    middle = len(op.name) * 8.6 + 28
    height = max(len(inputs), len(outputs), 2) * (_HEIGHT + _GAP) + _GAP
    left, right = widths[0] + _ARROW, widths[0] + 2 * _ARROW + middle
    parts = [_box(left, _GAP, middle, height - 2 * _GAP, op.name, "#ddeafc")]
    for side, (tensors, x) in enumerate(((inputs, 0.0), (outputs, right))):
        top = (height - len(tensors) * (_HEIGHT + _GAP) + _GAP) / 2
        for row, (tensor, text) in enumerate(tensors):
            y = top + row * (_HEIGHT + _GAP)
            parts.append(_box(x, y, widths[side], _HEIGHT, text, "#fff", dashed=tensor.optional))
            start, end = (widths[0], left) if side == 0 else (left + middle, right)
            parts.append(f'<path d="M{start + 3:.0f} {y + 13:.0f}H{end - 4:.0f}" marker-end="url(#a)"/>')
    return _svg(right + widths[1] + 2, height, parts)


def curve_figure(library: OpLibrary, op: Op) -> str:
    """Returns an SVG of the output of an op over x from -6 to 6, by its kernel, with default attributes; "" for an op
    that has no such curve. The gradient that a backward op takes is 1."""
    others = [tensor.name for tensor in op.inputs if tensor.name != "x"]
    if not op.elementwise or len(op.inputs) == len(others) or any(not name.startswith("grad_") for name in others):
        return ""
    x = np.linspace(-6, 6, 481, dtype=np.float32)
    given = {tensor.name: x if tensor.name == "x" else np.ones_like(x) for tensor in op.inputs}
    y = function(library, op, snake_case(op.name), op)(*given.values())
    low, high = min(float(y.min()), 0.0), max(float(y.max()), 0.0)
    width, height, edge = 440, 240, 34

    def place(at: float, value: float) -> str:
        across = edge + (at + 6) / 12 * (width - 2 * edge)
        return f"{across:.1f} {edge + (high - value) / (high - low) * (height - 2 * edge):.1f}"

    line = "L".join(place(float(a), float(b)) for a, b in zip(x, y, strict=True))
    texts = [(place(-6, 0), "-6", -20, 4), (place(6, 0), "6  x", 4, 4), (place(0, high), f"{high:.3g}", 6, -4)]
    texts += [(place(0, low), f"{low:.3g}", 6, 16)] if low < 0 else []
    parts = [f'<path d="M{place(-6, 0)}L{place(6, 0)}M{place(0, low)}L{place(0, high)}"/>']
    parts.append(f'<path d="M{line}" stroke="#1f6feb" stroke-width="2"/>')
    for at, text, right, down in texts:
        across, along = (float(number) for number in at.split())
        parts.append(_text(across + right, along + down, text))
    return _svg(width, height, parts)


def _label(tensor: Input | Output) -> str:
    """Returns the name, the type and the dims of a tensor."""
    several = "..." if isinstance(tensor, Input) and tensor.variadic else ""
    return f"{tensor.name}{several}: {tensor.type}[{dims_text(tensor.dims)}]"


def _box(x: float, y: float, width: float, height: float, text: str, fill: str, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4" fill="{fill}"{dashes}/>'
        + _text(x + width / 2, y + height / 2 + 4, text, "middle")
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{_INK}" stroke="none">{escape(text)}</text>'


def _svg(width: float, height: float, parts: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}"'
        f' font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="12" fill="none" stroke="{_LINE}">'
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{_LINE}" stroke="none"/></marker></defs>' + "".join(parts) + "</svg>\n"
    )
