"""What a request may set: inputs that it may leave out, with a number from 0 to 1 for each picture."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from onnx import numpy_helper

from opgate.attach.nodes import Nodes

#: The inputs with which a request asks for other boxes than those above the usual score, and suppresses others than
#: those of the usual overlap.
THRESHOLD, IOU = "score_threshold", "iou_threshold"
#: The status of a row whose setting is not within 0 to 1. ImagePreprocess has those below.
_CODES = {THRESHOLD: 5, IOU: 6}


def add(nodes: Nodes, name: str, default: float) -> None:
    """Adds an input, f32 [n, 1]."""
    nodes.defaults[name] = numpy_helper.from_array(np.array([[default]], np.float32), name)


def check(nodes: Nodes, status: str) -> None:
    """Adds `status` i32 [n]: that of each picture, or the one of a setting that is not within 0 to 1."""
    for name in nodes.defaults:
        flat = nodes.reshape(name, [-1], f"{name}.flat")
        below = nodes.add("Less", [flat, nodes.constant("nothing", 0.0)], f"{name}.below")
        above = nodes.add("Greater", [flat, nodes.constant("one", 1.0)], f"{name}.above")
        wrong = nodes.add("Or", [below, above], f"{name}.wrong")
        code = nodes.constant(f"{name}.code", _CODES[name], np.int32)
        status = nodes.add("Where", [wrong, code, status], f"{name}.status")
    nodes.add("Identity", [status], "checked", to="status")


def messages(names: Iterable[str]) -> str:
    """Returns the texts for the statuses of settings, as row_status_messages has them."""
    return "".join(f";{_CODES[name]}={name} is not within 0 to 1" for name in names)
