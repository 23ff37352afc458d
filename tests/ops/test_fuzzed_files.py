"""The files that fuzzing begins with and those that it found, through the ops that read them: tests/fuzz/README.md."""

from __future__ import annotations

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from opgate.ops_build.images.pictures import flat
from tests.fuzz.native import TARGETS
from tests.ops.conftest import RunOp

FILES = [path.read_bytes()[1:] for path in sorted(TARGETS["files"].corpus.iterdir())]
ROWS = {
    "ImagePreprocess": {"height": 12, "width": 12, "max_pixels": 1 << 16},
    "DecodeAudio": {"samples": 64, "sample_rate": 0},
    "AudioPreprocess": {"max_samples": 1000},
    "DecodePoints": {"max_points": 1000},
}


@pytest.mark.parametrize("op", ROWS)
def test_each_row_is_good_or_has_a_status(run_op: RunOp, op: str) -> None:
    data, ends = flat(FILES)
    together = run_op(op, {"data": data, "ends": ends}, ROWS[op])[-1]
    alone = [run_op(op, dict(zip(("data", "ends"), flat([file]), strict=True)), ROWS[op])[-1][0] for file in FILES]
    assert together.tolist() == alone
    assert 0 in alone and 1 in alone and set(alone) <= set(range(7))


def test_each_file_is_a_picture_or_refused(run_op: RunOp) -> None:
    shapes, refused = set(), 0
    for file in FILES:
        try:
            (image,) = run_op("DecodeImage", {"data": np.frombuffer(file, np.uint8)}, {"max_pixels": 1 << 16})
        except (Fail, InvalidArgument, RuntimeException) as error:
            assert "expected a JPEG, PNG, WebP, BMP or GIF" in str(error)
            refused += 1
        else:
            shapes.add(image.shape)
    assert {(7, 11, 3), (11, 7, 3)} & shapes and refused
