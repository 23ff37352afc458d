"""What a request may set: inputs that it may leave out, with a number for each picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from opgate.attach.model.nodes import Nodes, Setting

#: Which boxes, labels or texts count: those with a score above it, or at least it, and how many of the best.
SCORE, TOP_K = "score_threshold", "top_k"
#: From which overlap on boxes are suppressed, from which probability on a pixel is inside, and which mean a region of
#: text must have that is read.
IOU, MASK, BOX = "iou_threshold", "mask_threshold", "box_threshold"
#: Above which score a line is turned.
TURN = "turn_threshold"
#: The status of a row whose setting is beyond its bounds. ImagePreprocess has those below.
_CODES = {SCORE: 5, IOU: 6, TOP_K: 7, MASK: 8, BOX: 9, TURN: 10}
NAMES = tuple(_CODES)


def add(nodes: Nodes, name: str, setting: Setting) -> str:
    """Adds an input, f32 or i32 [n, 1], or [1, 1] where no request states it. Returns its name."""
    nodes.settings[name] = replace(setting, code=_CODES[name])
    return name


def each_picture(nodes: Nodes, setting: str) -> str:
    """Adds a setting with a number for each picture, f32 [n], at least its least."""
    flat = nodes.reshape(setting, [-1], f"{setting}.flat")
    held = nodes.add("Max", [flat, nodes.constant("least", nodes.settings[setting].least)], f"{setting}.held")
    return nodes.add("Expand", [held, nodes.add("Shape", [nodes.rows], f"{setting}.rows")], f"{setting}.each")


def at_most(nodes: Nodes, count: str, setting: str, *, to: str) -> None:
    """Adds the lesser of i32 [n] and a setting."""
    limit = nodes.reshape(setting, [-1], f"{setting}.flat")
    nodes.add("Where", [nodes.add("Less", [limit, count], "limited"), limit, count], "held", to=to)


def check(nodes: Nodes, status: str) -> None:
    """Adds `status` i32 [n]: that of each picture, or the one of a setting that is beyond its bounds or no number."""
    for name, setting in nodes.settings.items():
        flat = nodes.reshape(name, [-1], f"{name}.stated")
        value = nodes.cast(flat, TensorProto.FLOAT, f"{name}.f32") if setting.whole else flat
        held = nodes.add("Max", [value, nodes.constant(f"{name}.least", setting.least)], f"{name}.from_least")
        held = nodes.add("Min", [held, nodes.constant(f"{name}.most", setting.most)], f"{name}.to_most")
        code = nodes.constant(f"{name}.code", setting.code, np.int32)
        within = nodes.add("Equal", [held, value], f"{name}.within")
        status = nodes.add("Where", [within, status, code], f"{name}.status")
    nodes.add("Identity", [status], "checked", to="status")


def messages(settings: Mapping[str, Setting]) -> str:
    """Returns the texts for the statuses of settings, as row_status_messages has them."""
    return "".join(
        f";{setting.code}={name} is not within {setting.least:g} to {setting.most:g}"
        for name, setting in settings.items()
    )
