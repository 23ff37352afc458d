"""Voxelize in standard ONNX operators."""

from __future__ import annotations

#: The axes x, y, z in the order of `coords`. TfIdfVectorizer compares words, which Equal can't do in opset 18.
AXES_IN_ORDER = """
            order_number = Constant <value_string: string = @order> ()
            order_word = Unsqueeze (order_number, zero)
            orders = TfIdfVectorizer <mode: string = "TF", min_gram_length: int = 1, max_gram_length: int = 1,
                                      max_skip_count: int = 0, ngram_counts: ints = [0], ngram_indexes: ints = [0],
                                      pool_strings: strings = ["zyx"]> (order_word)
            is_reversed = Cast <to: int = 9> (orders)
            reversed_axes = Constant <value_ints: ints = [2, 1, 0]> ()
            ordered_axes = Where (is_reversed, reversed_axes, axes_of_points)
"""


def keys_of(present: frozenset[str]) -> str:
    """The keys of the points that are in a voxel, and `kept`, which says which these are. The keys are the kernel's.
    `size`, `range` and the batch numbers are not checked.

    The parts of a key are added one by one: ONNX Runtime's ReduceSum of int64 goes through f64 and loses the last bits.
    """
    if "range" in present:
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
        limits = """
            three = Constant <value_ints: ints = [3]> ()
            from_low = Identity (places)
            within = Equal (places, places)
        """
        numbers = "numbers = Identity (floors)"
    return f"""
            zero_number = Constant <value_int: int = 0> ()
            one_number = Constant <value_int: int = 1> ()
            zero = Constant <value_ints: ints = [0]> ()
            one = Constant <value_ints: ints = [1]> ()
            behind = Constant <value_ints: ints = [9223372036854775807]> ()
            batch_number = Constant <value_int: int = @batch_columns> ()
            batch = Unsqueeze (batch_number, zero)
            batched = Cast <to: int = 9> (batch)
            axes_of_points = Constant <value_ints: ints = [0, 1, 2]> ()
            axes = Add (axes_of_points, batch)
            places = Gather <axis: int = 1> (points, axes)
            {limits}
            quotients = Div (from_low, size)
            floors = Floor (quotients)
            {numbers}
            narrow_bias = Constant <value_ints: ints = [32768]> ()
            wide_bias = Constant <value_ints: ints = [1048576]> ()
            bias = Where (batched, narrow_bias, wide_bias)
            limit = Cast <to: int = 1> (bias)
            least = Neg (limit)
            not_below = GreaterOrEqual (numbers, least)
            not_above = Less (numbers, limit)
            numbered = And (not_below, not_above)
            good = And (numbered, within)
            good_numbers = Cast <to: int = 6> (good)
            good_rows = ReduceMin <keepdims: int = 0> (good_numbers, one)
            kept = Cast <to: int = 9> (good_rows)
            kept_numbers = Compress <axis: int = 0> (numbers, kept)
            moved_floats = Add (kept_numbers, limit)
            moved = Cast <to: int = 7> (moved_floats)
            narrow_strides = Constant <value_ints: ints = [1, 65536, 4294967296]> ()
            wide_strides = Constant <value_ints: ints = [1, 2097152, 4398046511104]> ()
            strides = Where (batched, narrow_strides, wide_strides)
            parts = Mul (moved, strides)
            x, y, z = Split <axis: int = 1, num_outputs: int = 3> (parts)
            x_and_y = Add (x, y)
            x_y_and_z = Add (x_and_y, z)
            n = Shape <end: int = 1> (points)
            one_column = Concat <axis: int = 0> (n, one)
            no_batches = ConstantOfShape <value: tensor = float[1] {{0.0}}> (one_column)
            given_batches = Slice (points, zero, batch, one)
            batches_and_none = Concat <axis: int = 1> (given_batches, no_batches)
            batches = Slice (batches_and_none, zero, one, one)
            kept_batches = Compress <axis: int = 0> (batches, kept)
            whole_batches = Cast <to: int = 7> (kept_batches)
            batch_stride = Constant <value_int: int = 281474976710656> ()
            batch_parts = Mul (whole_batches, batch_stride)
            key_column = Add (x_y_and_z, batch_parts)
            keys = Squeeze (key_column, one)
    """


def decomposition(present: frozenset[str]) -> str:
    """The keys, sorted by Unique, and the kernel's sums in f64. TopK with all elements is a stable sort."""
    inputs = "points, size, range" if "range" in present else "points, size"
    return f"""
        <domain: "opgate", opset_import: ["": 18]>
        Voxelize <reduction: string = "mean", max_points: int = 0, max_voxels: int = 0, order: string = "xyz",
                  batch_columns: int = 0>
                 ({inputs}) => (features, coords, counts) {{
            {keys_of(present)}
            feature_columns = Slice (points, batch, behind, one)
            kept_features = Compress <axis: int = 0> (feature_columns, kept)
            voxels, first, voxel, all_counts = Unique <axis: int = 0> (keys)

            m = Shape (keys)
            m_number = Squeeze (m, zero)
            sorted_voxel, sorted_points = TopK <largest: int = 0> (voxel, m)
            begins = CumSum <exclusive: int = 1> (all_counts, zero_number)
            begins_of_points = Gather (begins, sorted_voxel)
            positions = Range (zero_number, m_number, one_number)
            ranks = Sub (positions, begins_of_points)
            max_points_number = Constant <value_int: int = @max_points> ()
            points_limited = Cast <to: int = 9> (max_points_number)
            most_points = Where (points_limited, max_points_number, m_number)
            is_used = Less (ranks, most_points)
            used = Compress (sorted_points, is_used)
            used_voxel = Gather (voxel, used)
            place = Unsqueeze (used_voxel, one)
            used_features = Gather (kept_features, used)
            wide_features = Cast <to: int = 11> (used_features)
            used_counts = Min (all_counts, most_points)
            v = Shape (voxels)
            columns = Shape <start: int = 1> (kept_features)
            shape = Concat <axis: int = 0> (v, columns)
            reduction_number = Constant <value_string: string = @reduction> ()
            reduction_word = Unsqueeze (reduction_number, zero)
            reductions = TfIdfVectorizer <mode: string = "TF", min_gram_length: int = 1, max_gram_length: int = 1,
                                          max_skip_count: int = 0, ngram_counts: ints = [0],
                                          ngram_indexes: ints = [0, 1], pool_strings: strings = ["mean", "max"]>
                                         (reduction_word)
            is_one_of = Cast <to: int = 9> (reductions)
            is_mean = Gather (is_one_of, zero_number)
            is_max = Gather (is_one_of, one_number)
            reduced = If (is_max) <
                then_branch = maxima () => (maximum) {{
                    lowest = ConstantOfShape <value: tensor = double[1] {{-inf}}> (shape)
                    numbers_only = Equal (wide_features, wide_features)
                    minus_infinity = Constant <value: tensor = double {{-inf}}> ()
                    finite = Where (numbers_only, wide_features, minus_infinity)
                    greatest = ScatterND <reduction: string = "max"> (lowest, place, finite)
                    none = ConstantOfShape <value: tensor = double[1] {{0.0}}> (shape)
                    is_nan = Not (numbers_only)
                    nan_marks = Cast <to: int = 11> (is_nan)
                    nan_counts = ScatterND <reduction: string = "add"> (none, place, nan_marks)
                    has_nan = Cast <to: int = 9> (nan_counts)
                    nan = Sub (minus_infinity, minus_infinity)
                    maximum = Where (has_nan, nan, greatest)
                }},
                else_branch = totals () => (total) {{
                    nothing = ConstantOfShape <value: tensor = double[1] {{0.0}}> (shape)
                    sums = ScatterND <reduction: string = "add"> (nothing, place, wide_features)
                    divisor_numbers = Where (is_mean, used_counts, one)
                    divisors = Cast <to: int = 11> (divisor_numbers)
                    divisor_column = Unsqueeze (divisors, one)
                    total = Div (sums, divisor_column)
                }}
            >
            all_features = Cast <to: int = 1> (reduced)

            voxel_column = Unsqueeze (voxels, one)
            upper = Div (voxel_column, strides)
            two = Constant <value_int: int = 2> ()
            side = Mul (bias, two)
            digits = Mod (upper, side)
            voxel_numbers = Sub (digits, bias)
            {AXES_IN_ORDER}
            ordered = Gather <axis: int = 1> (voxel_numbers, ordered_axes)
            batch_digits = Div (voxel_column, batch_stride)
            batch_and_numbers = Concat <axis: int = 1> (batch_digits, ordered)
            first_column = Sub (one, batch)
            all_coords = Slice (batch_and_numbers, first_column, behind, one)

            max_voxels_number = Constant <value_int: int = @max_voxels> ()
            voxels_limited = Cast <to: int = 9> (max_voxels_number)
            at_most = Min (max_voxels_number, v)
            rows_left = Where (voxels_limited, at_most, v)
            _first_points, begun_first = TopK <largest: int = 0> (first, rows_left)
            rows, _places = TopK <largest: int = 0> (begun_first, rows_left)
            features = Gather (all_features, rows)
            coords_wide = Gather (all_coords, rows)
            coords = Cast <to: int = 6> (coords_wide)
            counts_wide = Gather (used_counts, rows)
            counts = Cast <to: int = 6> (counts_wide)
        }}
    """
