"""MultiScaleDeformableAttention in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """The four keys around each sample are gathered, in f64, one corner after the other. The levels are not checked: a
    key beyond `value` is an error of GatherND."""
    corners = "\n".join(_corner(down, right) for down in range(2) for right in range(2))
    return f"""
        <domain: "opgate", opset_import: ["": 18]>
        MultiScaleDeformableAttention (
            value, spatial_shapes, level_start_index, sampling_locations, attention_weights
        ) => (output) {{
            zero = Constant <value: tensor = double {{0}}> ()
            one = Constant <value: tensor = double {{1}}> ()
            half = Constant <value: tensor = double {{0.5}}> ()
            minus = Constant <value: tensor = double {{-1}}> ()
            last = Constant <value_ints: ints = [-1]> ()
            first = Constant <value_int: int = 0> ()
            second = Constant <value_int: int = 1> ()
            shapes = Cast <to: int = 11> (spatial_shapes)
            starts_flat = Cast <to: int = 11> (level_start_index)
            heights_flat = Gather <axis: int = 1> (shapes, first)
            widths_flat = Gather <axis: int = 1> (shapes, second)
            heights = Unsqueeze (heights_flat, last)
            widths = Unsqueeze (widths_flat, last)
            starts = Unsqueeze (starts_flat, last)
            locations = Cast <to: int = 11> (sampling_locations)
            weights = Cast <to: int = 11> (attention_weights)
            x_share = Gather <axis: int = 5> (locations, first)
            y_share = Gather <axis: int = 5> (locations, second)
            x_edge = Mul (x_share, widths)
            y_edge = Mul (y_share, heights)
            x = Sub (x_edge, half)
            y = Sub (y_edge, half)
            x_after = Greater (x, minus)
            y_after = Greater (y, minus)
            x_before = Less (x, widths)
            y_before = Less (y, heights)
            x_inside = And (x_after, x_before)
            y_inside = And (y_after, y_before)
            in_level = And (x_inside, y_inside)
            empty = Mul (heights, widths)
            has_keys = Greater (empty, zero)
            inside = And (in_level, has_keys)
            x_safe = Where (inside, x, zero)
            y_safe = Where (inside, y, zero)
            left = Floor (x_safe)
            top = Floor (y_safe)
            to_right = Sub (x_safe, left)
            to_below = Sub (y_safe, top)
            to_left = Sub (one, to_right)
            to_above = Sub (one, to_below)
            value_dims = Shape (value)
            b = Shape <start: int = 0, end: int = 1> (value)
            heads = Shape <start: int = 2, end: int = 3> (value)
            dims = Shape <start: int = 3, end: int = 4> (value)
            queries = Shape <start: int = 1, end: int = 2> (sampling_locations)
            zero_list = Constant <value_ints: ints = [0]> ()
            one_list = Constant <value_ints: ints = [1]> ()
            sample_dims = Shape <start: int = 3> (attention_weights)
            samples = ReduceProd <keepdims: int = 1> (sample_dims, zero_list)
            rows = Mul (queries, samples)
            flat_dims = Concat <axis: int = 0> (b, heads, rows)
            values_wide = Cast <to: int = 11> (value)
            values_found = Transpose <perm: ints = [0, 2, 1, 3]> (values_wide)
            pad_dims = Concat <axis: int = 0> (b, heads, one_list, dims)
            none = ConstantOfShape <value: tensor = double[1] {{0}}> (pad_dims)
            values = Concat <axis: int = 2> (none, values_found)
            {corners}
            sum_above = Add (terms00, terms01)
            sum_below = Add (terms10, terms11)
            sum = Add (sum_above, sum_below)
            grouped_dims = Concat <axis: int = 0> (b, heads, queries, samples, dims)
            grouped = Reshape <allowzero: int = 1> (sum, grouped_dims)
            sample_axis = Constant <value_ints: ints = [3]> ()
            totals = ReduceSum <keepdims: int = 0> (grouped, sample_axis)
            by_query = Transpose <perm: ints = [0, 2, 1, 3]> (totals)
            row = Mul (heads, dims)
            output_dims = Concat <axis: int = 0> (b, queries, row)
            output_wide = Reshape <allowzero: int = 1> (by_query, output_dims)
            output = CastLike (output_wide, value)
        }}
    """


def _corner(down: int, right: int) -> str:
    """The values of a corner times their weights, [b, heads, queries * samples, dims]. Where there is no key, a row of
    zeros is gathered, which stands before the first key."""
    c = f"{down}{right}"
    return f"""
            column{c} = {"Add (left, one)" if right else "Identity (left)"}
            row{c} = {"Add (top, one)" if down else "Identity (top)"}
            column_after{c} = GreaterOrEqual (column{c}, zero)
            row_after{c} = GreaterOrEqual (row{c}, zero)
            column_before{c} = Less (column{c}, widths)
            row_before{c} = Less (row{c}, heights)
            column_exists{c} = And (column_after{c}, column_before{c})
            row_exists{c} = And (row_after{c}, row_before{c})
            both{c} = And (column_exists{c}, row_exists{c})
            exists{c} = And (both{c}, inside)
            before{c} = Mul (row{c}, widths)
            in_level{c} = Add (before{c}, column{c})
            key{c} = Add (in_level{c}, starts)
            key_or_none{c} = Add (key{c}, one)
            place{c} = Where (exists{c}, key_or_none{c}, zero)
            near{c} = Mul ({"to_right" if right else "to_left"}, {"to_below" if down else "to_above"})
            weighted{c} = Mul (near{c}, weights)
            weight{c} = Where (exists{c}, weighted{c}, zero)
            place_long{c} = Cast <to: int = 7> (place{c})
            place_by_head{c} = Transpose <perm: ints = [0, 2, 1, 3, 4]> (place_long{c})
            weight_by_head{c} = Transpose <perm: ints = [0, 2, 1, 3, 4]> (weight{c})
            place_flat{c} = Reshape <allowzero: int = 1> (place_by_head{c}, flat_dims)
            weight_flat{c} = Reshape <allowzero: int = 1> (weight_by_head{c}, flat_dims)
            place_column{c} = Unsqueeze (place_flat{c}, last)
            weight_column{c} = Unsqueeze (weight_flat{c}, last)
            gathered{c} = GatherND <batch_dims: int = 2> (values, place_column{c})
            terms{c} = Mul (gathered{c}, weight_column{c})
    """
