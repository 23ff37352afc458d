"""Voxelize in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """The kernel's keys, sorted by Unique, and its sums in f64. `size` and `range` are not checked.

    The parts of a key are added one by one: ONNX Runtime's ReduceSum of int64 goes through f64 and loses the last bits.
    """
    if "range" in present:
        inputs = "points, size, range"
        limits = """
            three = Constant <value_ints: ints = [3]> ()
            six = Constant <value_ints: ints = [6]> ()
            low = Slice (range, zero, three)
            high = Slice (range, three, six)
            from_low = Sub (places, low)
            above = GreaterOrEqual (places, low)
            below = Less (places, high)
            within = And (above, below)
        """
        numbers = """
            extent = Sub (high, low)
            sides = Div (extent, size)
            rounded = Round (sides)
            unit = Constant <value_float: float = 1.0> ()
            voxels_of_axes = Max (rounded, unit)
            last = Sub (voxels_of_axes, unit)
            numbers = Min (floors, last)
        """
    else:
        inputs = "points, size"
        limits = """
            three = Constant <value_ints: ints = [3]> ()
            from_low = Identity (places)
            within = Equal (places, places)
        """
        numbers = "numbers = Identity (floors)"
    return f"""
        <domain: "opgate", opset_import: ["": 18]>
        Voxelize ({inputs}) => (features, coords, counts) {{
            zero = Constant <value_ints: ints = [0]> ()
            one = Constant <value_ints: ints = [1]> ()
            axes = Constant <value_ints: ints = [0, 1, 2]> ()
            places = Gather <axis: int = 1> (points, axes)
            {limits}
            quotients = Div (from_low, size)
            floors = Floor (quotients)
            {numbers}
            least = Constant <value_float: float = -1048576.0> ()
            limit = Constant <value_float: float = 1048576.0> ()
            not_below = GreaterOrEqual (numbers, least)
            not_above = Less (numbers, limit)
            numbered = And (not_below, not_above)
            good = And (numbered, within)
            good_numbers = Cast <to: int = 6> (good)
            good_rows = ReduceMin <keepdims: int = 0> (good_numbers, one)
            kept = Cast <to: int = 9> (good_rows)
            kept_points = Compress <axis: int = 0> (points, kept)
            kept_numbers = Compress <axis: int = 0> (numbers, kept)
            moved_floats = Add (kept_numbers, limit)
            moved = Cast <to: int = 7> (moved_floats)
            strides = Constant <value_ints: ints = [1, 2097152, 4398046511104]> ()
            parts = Mul (moved, strides)
            x, y, z = Split <axis: int = 1, num_outputs: int = 3> (parts)
            x_and_y = Add (x, y)
            key_column = Add (x_and_y, z)
            keys = Squeeze (key_column, one)
            voxels, first, voxel, counts_wide = Unique <axis: int = 0> (keys)
            counts = Cast <to: int = 6> (counts_wide)
            v = Shape (voxels)
            columns = Shape <start: int = 1> (points)
            shape = Concat <axis: int = 0> (v, columns)
            nothing = ConstantOfShape <value: tensor = double[1] {{0.0}}> (shape)
            place = Unsqueeze (voxel, one)
            wide_points = Cast <to: int = 11> (kept_points)
            sums = ScatterND <reduction: string = "add"> (nothing, place, wide_points)
            divisors = Cast <to: int = 11> (counts)
            divisor_column = Unsqueeze (divisors, one)
            means = Div (sums, divisor_column)
            features = Cast <to: int = 1> (means)
            voxel_column = Unsqueeze (voxels, one)
            upper = Div (voxel_column, strides)
            side = Constant <value_int: int = 2097152> ()
            digits = Mod (upper, side)
            bias = Constant <value_int: int = 1048576> ()
            coords_wide = Sub (digits, bias)
            coords = Cast <to: int = 6> (coords_wide)
        }}
    """
