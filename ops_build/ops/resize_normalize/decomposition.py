"""ResizeNormalize in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """An engine's Resize may place the taps in f32, a little beside where they are, and make no empty tensors."""
    return """
        <domain: "opgate", opset_import: ["": 18]>
        ResizeNormalize <
            height, width, mean: floats = [0.0, 0.0, 0.0], std: floats = [1.0, 1.0, 1.0],
            interpolation: string = "linear"
        > (image) => (tensor) {
            planes = Transpose <perm: ints = [0, 3, 1, 2]> (image)
            pixels = Cast <to: int = 1> (planes)
            one = Constant <value_ints: ints = [1]> ()
            rows = Constant <value_int: int = @height> ()
            columns = Constant <value_int: int = @width> ()
            rows_list = Reshape (rows, one)
            columns_list = Reshape (columns, one)
            sizes = Concat <axis: int = 0> (rows_list, columns_list)
            resized = Resize <axes: ints = [2, 3], mode: string = @interpolation> (pixels, , , sizes)
            most = Constant <value_float: float = 255.0> ()
            values = Div (resized, most)
            channels = Constant <value_ints: ints = [3, 1, 1]> ()
            mean_list = Constant <value_floats: floats = @mean> ()
            std_list = Constant <value_floats: floats = @std> ()
            mean_channels = Reshape (mean_list, channels)
            std_channels = Reshape (std_list, channels)
            centred = Sub (values, mean_channels)
            tensor = Div (centred, std_channels)
        }
    """
