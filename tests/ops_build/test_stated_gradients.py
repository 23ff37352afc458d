"""Gradients that are stated in Python: what is none is refused with its line, and what is no slope is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.op_folder import OpFolder
from opgate.ops_build.op_table import Op, read_table
from opgate.ops_build.python_ops.op_file import OpFileError
from opgate.ops_build.stated_gradient import GradientError, StatedGradient, stated_gradient
from opgate.ops_build.verification.slopes import References, check_stated_gradient

ROTARY = SOURCE / "ops" / "rotary_embedding"


@pytest.fixture(scope="module")
def table(library: Path) -> list[Op]:
    return read_table(library)


@pytest.fixture(scope="module")
def rotary(table: list[Op]) -> Op:
    return next(op for op in table if op.name == "RotaryEmbedding")


def test_the_library_has_the_text(rotary: Op) -> None:
    assert rotary.gradient == (ROTARY / "gradient.py").read_text()
    assert StatedGradient(rotary).tensors == ["cos_cache", "sin_cache", "position_ids"]


@pytest.mark.parametrize(("right", "wrong"), [("-sin_cache", "sin_cache"), ("(grad_y", "(2 * grad_y")])
def test_what_is_no_slope_is_found(table: list[Op], rotary: Op, right: str, wrong: str) -> None:
    folder, references = OpFolder(ROTARY), References(table, [SOURCE / "ops"])
    case = next(case for case in folder.cases({"T": np.dtype(np.float32)}) if case.name.startswith("(2, 3, 5, 8)"))
    check_stated_gradient(rotary, folder, case, references)
    text = rotary.gradient.replace(right, wrong)
    assert text != rotary.gradient
    with pytest.raises(ValueError, match="the gradient of 'x' is no slope of RotaryEmbedding: in a random direction"):
        check_stated_gradient(replace(rotary, gradient=text), folder, case, references)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def gradient(ops, grad_z):\n    return None",
            r"gradient\.py:1: a gradient of RotaryEmbedding takes grad_y, x,",
        ),
        ("gradient = 3", r"gradient\.py:1: expected a function gradient\(ops, grad_y, \.\.\.\)"),
        ("import nothing_of_this_name", r"gradient\.py:1: ModuleNotFoundError"),
        ("def gradient(ops:", r"gradient\.py:1: SyntaxError"),
    ],
)
def test_what_is_no_gradient_is_refused(rotary: Op, text: str, message: str) -> None:
    with pytest.raises(GradientError, match=message):
        StatedGradient(replace(rotary, gradient=text))


def test_too_few_gradients_and_two_kinds_are_refused(table: list[Op], rotary: Op) -> None:
    short = StatedGradient(replace(rotary, gradient="def gradient(ops, grad_y):\n    return grad_y"))
    with pytest.raises(GradientError, match=r"gradient\.py:1: expected 4 gradients, one for each input, got 1"):
        short(None, {"grad_y": 1}, {})
    mish = next(op for op in table if op.name == "Mish")
    backward = next(op for op in table if op.name == "MishBackward")
    with pytest.raises(GradientError, match=r"Mish has two gradients: a gradient\.py, and the op MishBackward"):
        stated_gradient(replace(mish, gradient="def gradient(ops, grad_y):\n    return grad_y"), backward)


def test_a_folder_whose_gradient_is_none_is_not_built(tmp_path: Path) -> None:
    folder = tmp_path / "twice"
    folder.mkdir()
    (folder / "twice.h").write_text('OPGATE_OP(Twice, "Twice(x: f32[...]) -> (y: f32[...])", "2 x.")')
    (folder / "gradient.py").write_text("def gradient(ops, grad_y):\n    return ops.twice(grad_y)\n")
    source = OpFolder(folder).generated_sources()["twice_gradient.cpp"]
    assert '("Twice",\n"def gradient(ops, grad_y):\\n"\n"    return ops.twice(grad_y)\\n"\n)' in source
    (folder / "gradient.py").write_text("gradient = 1")
    with pytest.raises(OpFileError, match=r"twice/gradient\.py:1: expected a function gradient"):
        OpFolder(folder).generated_sources()
