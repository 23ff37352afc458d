"""ResizeNormalize in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """An engine's Resize may place the taps in f32, a little beside where they are, and make no empty tensors."""
    return """
        <domain: "opgate", opset_import: ["": 18]>
        ResizeNormalize <
            height, width, mean: floats = [0.0], std: floats = [1.0],
            interpolation: string = "linear", antialias: int = 0, shorter_side: int = 0
        > (image) => (tensor) {
            planes = Transpose <perm: ints = [0, 3, 1, 2]> (image)
            pixels = Cast <to: int = 1> (planes)
            one = Constant <value_ints: ints = [1]> ()
            rows = Constant <value_int: int = @height> ()
            columns = Constant <value_int: int = @width> ()
            rows_list = Reshape (rows, one)
            columns_list = Reshape (columns, one)
            wanted = Concat <axis: int = 0> (rows_list, columns_list)
            side = Constant <value_int: int = @shorter_side> ()
            none = Constant <value_int: int = 0> ()
            two = Constant <value_int: int = 2> ()
            least = Constant <value_int: int = 1> ()
            sides = Shape <start: int = 1, end: int = 3> (image)
            shorter = ReduceMin <keepdims: int = 0> (sides)
            divisor = Max (shorter, least)
            product = Mul (sides, side)
            scaled = Div (product, divisor)
            whole = Equal (side, none)
            sizes = Where (whole, wanted, scaled)
            resized = Resize <axes: ints = [2, 3], mode: string = @interpolation, antialias: int = @antialias,
                              exclude_outside: int = @antialias>
                (pixels, , , sizes)
            beyond = Sub (sizes, wanted)
            half = Div (beyond, two)
            odd = Mod (beyond, two)
            odd_half = Mod (half, two)
            up = Mul (odd, odd_half)
            begin = Add (half, up)
            end = Add (begin, wanted)
            axes = Constant <value_ints: ints = [2, 3]> ()
            centre = Slice (resized, begin, end, axes)
            most = Constant <value_float: float = 255.0> ()
            values = Div (centre, most)
            channels = Constant <value_ints: ints = [-1, 1, 1]> ()
            mean_list = Constant <value_floats: floats = @mean> ()
            std_list = Constant <value_floats: floats = @std> ()
            mean_channels = Reshape (mean_list, channels)
            std_channels = Reshape (std_list, channels)
            centred = Sub (values, mean_channels)
            tensor = Div (centred, std_channels)
        }
    """
