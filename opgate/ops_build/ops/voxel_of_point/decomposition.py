"""VoxelOfPoint in standard ONNX operators."""

from __future__ import annotations

from opgate.ops_build.ops.voxelize.decomposition import AXES_IN_ORDER, keys_of


def decomposition(present: frozenset[str]) -> str:
    """Unique gives equal keys of voxels and points one number. For each number the lowest row is looked up."""
    inputs = "points, coords, size, range" if "range" in present else "points, coords, size"
    return f"""
        <domain: "opgate", opset_import: ["": 18]>
        VoxelOfPoint <order: string = "xyz", batch_columns: int = 0> ({inputs}) => (voxel) {{
            {keys_of(present)}
            {AXES_IN_ORDER}
            coords_wide = Cast <to: int = 7> (coords)
            coord_columns = Slice (coords_wide, batch, behind, one)
            coord_numbers = Gather <axis: int = 1> (coord_columns, ordered_axes)
            moved_coords = Add (coord_numbers, bias)
            two = Constant <value_int: int = 2> ()
            side = Mul (bias, two)
            coord_digits = Mod (moved_coords, side)
            unchanged = Equal (coord_digits, moved_coords)
            coord_parts = Mul (coord_digits, strides)
            coord_x, coord_y, coord_z = Split <axis: int = 1, num_outputs: int = 3> (coord_parts)
            coord_x_and_y = Add (coord_x, coord_y)
            coord_x_y_and_z = Add (coord_x_and_y, coord_z)
            v = Shape <end: int = 1> (coords)
            v_number = Squeeze (v, zero)
            one_column_of_coords = Concat <axis: int = 0> (v, one)
            no_coord_batches = ConstantOfShape <value: tensor = int64[1] {{0}}> (one_column_of_coords)
            given_coord_batches = Slice (coords_wide, zero, batch, one)
            coord_batches_and_none = Concat <axis: int = 1> (given_coord_batches, no_coord_batches)
            coord_batches = Slice (coord_batches_and_none, zero, one, one)
            batch_side = Constant <value_int: int = 32768> ()
            coord_batch_digits = Mod (coord_batches, batch_side)
            unchanged_batch = Equal (coord_batch_digits, coord_batches)
            coord_batch_parts = Mul (coord_batch_digits, batch_stride)
            coord_key_column = Add (coord_x_y_and_z, coord_batch_parts)
            all_unchanged = And (unchanged, unchanged_batch)
            unchanged_numbers = Cast <to: int = 6> (all_unchanged)
            unchanged_rows = ReduceMin (unchanged_numbers, one)
            is_voxel = Cast <to: int = 9> (unchanged_rows)
            no_key = Constant <value_int: int = -1> ()
            coord_key_or_none = Where (is_voxel, coord_key_column, no_key)
            coord_keys = Squeeze (coord_key_or_none, one)
            all_keys = Concat <axis: int = 0> (coord_keys, keys)
            distinct, _first, number, _counts = Unique <axis: int = 0> (all_keys)
            numbers_of_voxels = Slice (number, zero, v)
            numbers_of_points = Slice (number, v, behind)
            distinct_count = Shape (distinct)
            no_rows = Expand (v, distinct_count)
            all_rows = Range (zero_number, v_number, one_number)
            rows_of_numbers = ScatterElements <reduction: string = "min"> (no_rows, numbers_of_voxels, all_rows)
            found = Gather (rows_of_numbers, numbers_of_points)
            is_found = Less (found, v)
            rows = Where (is_found, found, no_key)
            nowhere = ConstantOfShape <value: tensor = int64[1] {{-1}}> (n)
            kept_places = NonZero (kept)
            kept_points = Squeeze (kept_places, zero)
            voxel_wide = ScatterElements (nowhere, kept_points, rows)
            voxel = Cast <to: int = 6> (voxel_wide)
        }}
    """
