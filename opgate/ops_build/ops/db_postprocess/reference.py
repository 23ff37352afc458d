"""DBPostprocess in NumPy, one region after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from opgate.ops_build.case import Array


def reference(
    probabilities: Array,
    geometry: Array | None,
    thresholds: Array | None,
    box_thresholds: Array | None,
    *,
    threshold: float,
    box_threshold: float,
    unclip_ratio: float,
    min_size: int,
    max_detections: int,
    dilation: bool,
) -> tuple[Array, Array, Array]:
    """quads f32 [n, max_detections, 4, 2], scores f32 [n, max_detections] and count i32 [n] of maps f32 [n, 1, h, w],
    geometry f32 [n, 6], and thresholds and box_thresholds f32 [n]. Computed in f64."""
    n = len(probabilities)
    quads = np.zeros((n, max_detections, 4, 2), np.float32)
    scores, count = np.zeros((n, max_detections), np.float32), np.zeros(n, np.int32)
    ratio = float(np.float32(unclip_ratio))
    for i, values in enumerate(probabilities[:, 0]):
        mask = values > (np.float32(threshold) if thresholds is None else thresholds[i])
        least = np.float32(box_threshold) if box_thresholds is None else box_thresholds[i]
        if dilation:
            grown = np.pad(mask, ((1, 0), (1, 0)))
            mask = grown[1:, 1:] | grown[:-1, 1:] | grown[1:, :-1] | grown[:-1, :-1]
        held = np.clip(np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=0.0), 0, 1).astype(np.float64)
        for pixels in regions(mask):
            if count[i] == max_detections:
                break
            side, (p, q) = least_rectangle(pixels)
            length = np.hypot(*side)
            w, h = (p[1] - p[0]) / length, (q[1] - q[0]) / length
            if min(w, h) < min_size:
                continue
            score = mean_within(held, side, p, q)
            distance = w * h * ratio / (2 * (w + h))
            if score < least or min(w, h) + 2 * distance < min_size + 2:
                continue
            quads[i, count[i]] = placed(corners(side, p, q, distance), None if geometry is None else geometry[i])
            scores[i, count[i]] = score
            count[i] += 1
    return quads, scores, count


def regions(mask: Array) -> Iterator[Array]:
    """Yields the pixels y x of each region [k, 2], sorted. Pixels touch at sides and corners."""
    left = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    for first in sorted(left):
        if first not in left:
            continue
        left.remove(first)
        found, reached = [first], [first]
        while reached:
            y, x = reached.pop()
            near = {(y + i, x + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & left
            left -= near
            found += near
            reached += near
        yield np.array(sorted(found))


def least_rectangle(pixels: Array) -> tuple[Array, Array]:
    """Returns the side (dx, dy) of the hull along which the rectangle lies, and the least and greatest p = dx x + dy y
    and q = dx y - dy x, [2, 2]. Those of a region in a line are 0."""
    rows = np.unique(pixels[:, 0])
    ends = [(x, y) for y in rows for x in {f(pixels[pixels[:, 0] == y, 1].tolist()) for f in (min, max)}]
    hull = np.array(convex_hull(sorted(ends, key=lambda point: (point[1], point[0]))), np.int64)
    best, least = (np.array([1, 0]), np.zeros((2, 2), np.int64)), np.inf
    if len(hull) < 3:
        return best
    for side in np.roll(hull, -1, 0) - hull:
        dx, dy = side
        along = np.stack([hull @ [dx, dy], hull @ [-dy, dx]])
        ranges = np.stack([along.min(1), along.max(1)], 1)
        p, q = (ranges[:, 1] - ranges[:, 0]).astype(np.float64)
        area = p * q / float(dx * dx + dy * dy)
        if area < least:
            best, least = (side, ranges), area
    return best


def convex_hull(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The corners of the hull of points x y that are sorted by y, then x: from the first on, clockwise where y goes
    down, without points in a line."""

    def chain(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
        kept: list[tuple[int, int]] = []
        for x, y in points:
            while len(kept) > 1:
                (ax, ay), (bx, by) = kept[-2:]
                if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0:
                    break
                kept.pop()
            kept.append((x, y))
        return kept

    right, left = chain(points), chain(points[::-1])
    return right[:-1] + left[:-1]


def mean_within(values: Array, side: Array, p: Array, q: Array) -> np.float32:
    """The mean of the pixels in a rectangle, with those that its sides pass through."""
    (dx, dy), (y, x) = side, np.indices(values.shape)
    drawn = max(abs(dx), abs(dy))
    inside = np.ones(values.shape, bool)
    for at, (least, most) in ((dx * x + dy * y, p), (dx * y - dy * x, q)):
        inside &= (2 * at >= 2 * least - drawn) & (2 * at <= 2 * most + drawn)
    return np.float32(values[inside].mean())


def corners(side: Array, p: Array, q: Array, distance: float) -> Array:
    """The corners x y of a rectangle that is grown on each side, [4, 2]."""
    length, more = np.hypot(*side), np.array([-distance, distance])
    u = side / length
    v = np.array([-u[1], u[0]])
    return np.stack([(p / length + more)[i] * u + (q / length + more)[j] * v for i in (0, 1) for j in (0, 1)])


def placed(quad: Array, geometry: Array | None) -> Array:
    """Corners in pixels of the source picture, from the top left on, clockwise."""
    if geometry is not None:
        quad = (quad - geometry[2:4]) * geometry[:2].astype(np.float64)
    at_left = np.argsort(quad @ [1, 1 / 4096], kind="stable")
    (top_left, bottom_left), (top_right, bottom_right) = (
        pair[np.argsort(pair[:, 1], kind="stable")] for pair in (quad[at_left[:2]], quad[at_left[2:]])
    )
    ordered = np.stack([top_left, top_right, bottom_right, bottom_left])
    return ordered if geometry is None else np.clip(ordered, 0, geometry[4:6])
