"""DrawBoundingBoxes and DrawPolygons: which pixels they change."""

from __future__ import annotations

import cv2
import numpy as np

from opgate.ops_build.case import Array
from tests.ops.conftest import RunOp

GREY = np.full((200, 300, 3), 90, np.uint8)


def draw(
    run_op: RunOp, boxes: list[list[float]], image: Array = GREY, attributes: object = None, **inputs: object
) -> Array:
    return run_op(
        "DrawBoundingBoxes", {"image": image, "boxes": np.float32(boxes).reshape(-1, 4), **inputs}, attributes
    )[0]


def changed(drawn: Array) -> Array:
    return (drawn != GREY).any(-1)


def test_an_outline_lies_within_the_box_and_nothing_else_changes(run_op: RunOp) -> None:
    for thickness in (1, 2, 5):
        expected = np.zeros(GREY.shape[:2], bool)
        expected[50:150, 100:250] = True
        expected[50 + thickness : 150 - thickness, 100 + thickness : 250 - thickness] = False
        drawn = draw(run_op, [[100, 50, 250, 150]], attributes={"thickness": thickness})
        np.testing.assert_array_equal(changed(drawn), expected)
        assert len(np.unique(drawn[expected], axis=0)) == 1


def test_the_thickness_follows_the_picture(run_op: RunOp) -> None:
    for height, width, thickness in [(100, 100, 2), (400, 900, 2), (500, 500, 3), (1080, 1920, 5)]:
        image = np.zeros((height, width, 3), np.uint8)
        drawn = draw(run_op, [[10, 10, 90, 90]], image)
        assert (drawn[50, 10:90].any(-1).nonzero()[0] < 40).sum() == thickness


def test_the_input_is_left_alone_and_no_box_changes_nothing(run_op: RunOp) -> None:
    image = GREY.copy()
    draw(run_op, [[0, 0, 300, 200]], image)
    np.testing.assert_array_equal(image, GREY)
    np.testing.assert_array_equal(draw(run_op, []), GREY)
    np.testing.assert_array_equal(draw(run_op, [[400, 0, 500, 90], [-90, -90, -1, -1], [9, 9, 3, 3]]), GREY)


def test_count_limits_the_rows(run_op: RunOp) -> None:
    boxes = [[10, 100, 50, 150], [100, 100, 150, 150], [200, 100, 250, 150]]
    for count in range(4):
        drawn = changed(draw(run_op, boxes, count=np.int32([count])))
        assert [bool(drawn[100, x]) for x in (20, 120, 220)] == [count > i for i in range(3)]


def test_labels_have_colours_of_their_own_and_the_first_row_is_on_top(run_op: RunOp) -> None:
    boxes = [[20.0 * i + 2, 100, 20 * i + 16, 150] for i in range(14)]
    labels = np.arange(14, dtype=np.int32)
    drawn = draw(run_op, boxes, labels=labels)
    assert len({tuple(drawn[149, 20 * i + 9]) for i in range(14)}) == 14
    both = draw(run_op, [[50, 50, 90, 90]] * 2, labels=np.int32([3, 4]))
    np.testing.assert_array_equal(both[89, 60], draw(run_op, [[50, 50, 90, 90]], labels=np.int32([3]))[89, 60])


def test_tags_tell_names_numbers_and_scores_apart(run_op: RunOp) -> None:
    seen = set()
    for labels, scores, names in [
        (None, None, []),
        ([0], None, ["cat"]),
        ([0], None, ["dog"]),
        ([0], None, []),
        ([0], [0.87], ["cat"]),
        ([0], [0.86], ["cat"]),
        (None, [0.87], ["cat"]),
    ]:
        drawn = draw(
            run_op,
            [[100, 50, 250, 150]],
            labels=None if labels is None else np.int32(labels),
            scores=None if scores is None else np.float32(scores),
            attributes={"names": names},
        )
        seen.add(drawn.tobytes())
    assert len(seen) == 7


def test_a_tag_stays_within_the_picture(run_op: RunOp) -> None:
    """The whole tag is visible, wherever the box lies."""
    names = {"names": ["a long name"]}
    label = np.int32([0])
    inside = draw(run_op, [[100, 60, 102, 62]], labels=label, attributes=names)
    size = changed(inside).sum()
    for box in (
        [0, 0, 2, 2],
        [298, 0, 300, 2],
        [298, 198, 300, 200],
        [0, 198, 2, 200],
        [-50, -50, 2, 2],
        [298, 190, 900, 900],
    ):
        drawn = draw(run_op, [box], labels=label, attributes=names)
        assert changed(drawn).sum() >= size - 4


def test_sides_of_polygons_are_as_near_as_opencv_says(run_op: RunOp) -> None:
    rng = np.random.default_rng(5)
    for thickness in (1, 2, 5):
        for _ in range(6):
            box = ((*rng.uniform([40, 40], [260, 160]),), (*rng.uniform(10, 120, 2),), rng.uniform(0, 90))
            quad = cv2.boxPoints(box).astype(np.float32)
            inputs = {"image": GREY, "polygons": quad[None]}
            drawn = run_op("DrawPolygons", inputs, {"thickness": thickness})[0]
            away = [[abs(cv2.pointPolygonTest(quad, (x, y), True)) for x in range(300)] for y in range(200)]
            away = np.array(away) - thickness / 2
            sure = np.abs(away) > 1e-4
            np.testing.assert_array_equal(changed(drawn)[sure], (away < 0)[sure])


def test_a_polygon_has_the_tag_of_the_box_around_it(run_op: RunOp) -> None:
    quad = np.float32([[[60, 80], [160, 60], [170, 100], [70, 120]]])
    said = {"scores": np.float32([0.5]), "labels": np.int32([2])}
    names = {"names": ["", "a", "b"], "thickness": 1}
    boxed = draw(run_op, [[60, 60, 170, 120]], attributes=names, **said)
    drawn = run_op("DrawPolygons", {"image": GREY, "polygons": quad, **said}, names)[0]
    np.testing.assert_array_equal(boxed[:60], drawn[:60])
    texts = {"texts": np.int32([[-1, 2, 1, 7]]), "scores": np.float32([0.5])}
    read = run_op("DrawPolygons", {"image": GREY, "polygons": quad, **texts}, names)[0]
    plain = {"names": ["ba"], "thickness": 1}
    boxed = draw(run_op, [[60, 60, 170, 120]], attributes=plain, scores=np.float32([0.5]), labels=np.int32([0]))
    np.testing.assert_array_equal(boxed[:60], read[:60])
