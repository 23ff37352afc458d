"""BevPoolV2 in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """A row for each point, computed in f64, and ScatterND that adds them. Ranks below 0 count from the end, and the
    intervals are not checked."""
    if len(present) == 1:
        (name,) = present
        raise ValueError(f"input '{name}': expected both intervals or none")
    inputs = "depth, feat, ranks_depth, ranks_feat, ranks_bev"
    if present:
        inputs += ", interval_starts, interval_lengths"
    everything = """
            points_depth = Identity (ranks_depth)
            points_feat = Identity (ranks_feat)
            cells = Cast <to: int = 7> (ranks_bev)
    """
    return f"""
        <domain: "opgate", opset_import: ["": 18]>
        BevPoolV2 <out_z: int = 1, out_height: int, out_width: int> ({inputs}) => (bev) {{
            all = Constant <value_ints: ints = [-1]> ()
            first = Constant <value_ints: ints = [0]> ()
            second = Constant <value_ints: ints = [1]> ()
            {_OF_INTERVALS if present else everything}
            depth_list = Reshape (depth, all)
            weights_narrow = Gather (depth_list, points_depth)
            weights = Cast <to: int = 11> (weights_narrow)
            pixel_dims = Shape <start: int = 0, end: int = 4> (feat)
            pixels = ReduceProd <keepdims: int = 1> (pixel_dims, first)
            c = Shape <start: int = 4> (feat)
            row_dims = Concat <axis: int = 0> (pixels, c)
            rows = Reshape <allowzero: int = 1> (feat, row_dims)
            of_points = Gather (rows, points_feat)
            wide = Cast <to: int = 11> (of_points)
            column = Unsqueeze (weights, second)
            terms = Mul (column, wide)
            z_number = Constant <value_int: int = @out_z> ()
            z = Reshape (z_number, second)
            height_number = Constant <value_int: int = @out_height> ()
            height = Reshape (height_number, second)
            width_number = Constant <value_int: int = @out_width> ()
            width = Reshape (width_number, second)
            b = Shape <start: int = 0, end: int = 1> (depth)
            grid = Concat <axis: int = 0> (b, z, height, width)
            count = ReduceProd <keepdims: int = 1> (grid, first)
            table_dims = Concat <axis: int = 0> (count, c)
            zeros = ConstantOfShape <value: tensor = double[1] {{0}}> (table_dims)
            places = Unsqueeze (cells, second)
            sums = ScatterND <reduction: string = "add"> (zeros, places, terms)
            bev_dims = Concat <axis: int = 0> (grid, c)
            bev_wide = Reshape <allowzero: int = 1> (sums, bev_dims)
            bev = CastLike (bev_wide, depth)
        }}
    """


#: The points of the intervals. An empty interval before the first one has the points that come before all others.
_OF_INTERVALS = """
            none = Constant <value: tensor = int64[1] {0}> ()
            starts_long = Cast <to: int = 7> (interval_starts)
            lengths_long = Cast <to: int = 7> (interval_lengths)
            starts = Concat <axis: int = 0> (none, starts_long)
            lengths = Concat <axis: int = 0> (none, lengths_long)
            p = Shape (ranks_bev)
            one = Constant <value_int: int = 1> ()
            zero = Constant <value_int: int = 0> ()
            p_number = Squeeze (p)
            p_and_one = Add (p, second)
            marks_zero = ConstantOfShape <value: tensor = int64[1] {0}> (p_and_one)
            start_places = Unsqueeze (starts, second)
            start_dims = Shape (starts)
            ones = ConstantOfShape <value: tensor = int64[1] {1}> (start_dims)
            marks = ScatterND <reduction: string = "add"> (marks_zero, start_places, ones)
            begun = CumSum (marks, zero)
            begun_of_points = Slice (begun, first, p)
            interval = Sub (begun_of_points, one)
            start = Gather (starts, interval)
            length = Gather (lengths, interval)
            end = Add (start, length)
            positions = Range (zero, p_number, one)
            inside = Less (positions, end)
            points_depth = Compress <axis: int = 0> (ranks_depth, inside)
            points_feat = Compress <axis: int = 0> (ranks_feat, inside)
            start_inside = Compress <axis: int = 0> (start, inside)
            cells_narrow = Gather (ranks_bev, start_inside)
            cells = Cast <to: int = 7> (cells_narrow)
"""
