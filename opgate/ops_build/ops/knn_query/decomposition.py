"""KNNQuery in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """All m x n distances, infinite between segments, and their TopK: of equal values it takes the lowest index first.
    For m x n of some millions; the offsets are not checked."""
    if present == {"new_offset"}:
        raise ValueError("input 'new_offset': expected 'new_xyz' with it, got none")
    inputs = ["xyz", "offset", *(name for name in ("new_xyz", "new_offset") if name in present)]
    queries = "new_xyz" if "new_xyz" in present else "xyz"
    if "new_xyz" in present and "new_offset" not in present:
        usable = "usable = Identity (near)"  # there is one segment
    else:
        query_ends = "new_offset" if "new_offset" in present else "offset"
        usable = f"""
            {_segment("xyz", "offset", "point")}
            {_segment(queries, query_ends, "query")}
            of_points = Unsqueeze (point_segment, first)
            of_queries = Unsqueeze (query_segment, second)
            same = Equal (of_queries, of_points)
            usable = And (same, near)
        """
    return f"""
        <domain: "opgate", opset_import: ["": 18]>
        KNNQuery <nsample: int = 16, fill: int = -1> ({", ".join(inputs)}) => (idx, dist) {{
            zero = Constant <value_int: int = 0> ()
            one = Constant <value_int: int = 1> ()
            first = Constant <value_ints: ints = [0]> ()
            second = Constant <value_ints: ints = [1]> ()
            infinite = Constant <value: tensor = float {{inf}}> ()
            infinity = CastLike (infinite, xyz)
            query_places = Unsqueeze ({queries}, second)
            point_places = Unsqueeze (xyz, first)
            difference = Sub (point_places, query_places)
            squares = Mul (difference, difference)
            column_before = Constant <value_ints: ints = [0, 0, 1, 0, 0, 0]> ()
            from_zero = Pad (squares, column_before)
            last_axis = Constant <value_int: int = 2> ()
            sums = CumSum (from_zero, last_axis)
            last = Constant <value_int: int = -1> ()
            squared = Gather <axis: int = 2> (sums, last)
            near = Less (squared, infinity)
            {usable}
            candidates = Where (usable, squared, infinity)
            nsample_number = Constant <value_int: int = @nsample> ()
            nsample_list = Reshape (nsample_number, second)
            m = Shape <start: int = 0, end: int = 1> ({queries})
            wanted = Concat <axis: int = 0> (m, nsample_list)
            none = Expand (infinity, wanted)
            enough = Concat <axis: int = 1> (candidates, none)
            nearest, places = TopK <axis: int = 1, largest: int = 0> (enough, nsample_list)
            found = Less (nearest, infinity)
            missing = Constant <value_int: int = @fill> ()
            rows = Where (found, places, missing)
            idx = Cast <to: int = 6> (rows)
            dist = Sqrt (nearest)
        }}
    """


def _segment(rows: str, ends: str, name: str) -> str:
    """The segment of each row: how many ends are not beyond it."""
    return f"""
            {name}_list = Shape <start: int = 0, end: int = 1> ({rows})
            {name}_count = Squeeze ({name}_list)
            {name}_rows = Range (zero, {name}_count, one)
            {name}_column = Unsqueeze ({name}_rows, second)
            {name}_ends = Cast <to: int = 7> ({ends})
            {name}_passed = GreaterOrEqual ({name}_column, {name}_ends)
            {name}_numbers = Cast <to: int = 7> ({name}_passed)
            {name}_segment = ReduceSum <keepdims: int = 0> ({name}_numbers, second)
    """
