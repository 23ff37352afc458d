"""SlidingWindow in standard ONNX operators."""

from __future__ import annotations


def decomposition(present: frozenset[str]) -> str:
    """Gathers every window, so it needs `size` times the memory of the results.

    Whether a window has a NaN is computed apart, because runtimes differ in what the least of values with a NaN is.
    """
    return """
        <domain: "opgate", opset_import: ["": 18]>
        SlidingWindow <size: int, step: int = 1, ddof: int = 0> (x) => (mean, std, min, max) {
            zero = Constant <value_int: int = 0> ()
            one = Constant <value_int: int = 1> ()
            size = Constant <value_int: int = @size> ()
            step = Constant <value_int: int = @step> ()
            ddof = Constant <value_int: int = @ddof> ()
            shape = Shape <start: int = 1, end: int = 2> (x)
            axes = Constant <value_ints: ints = [0]> ()
            t = Squeeze (shape, axes)
            room = Sub (t, size)
            last = Add (room, one)
            end = Max (last, zero)
            starts = Range (zero, end, step)
            offsets = Range (zero, size, one)
            second = Constant <value_ints: ints = [1]> ()
            column = Unsqueeze (starts, second)
            indices = Add (column, offsets)
            windows = Gather <axis: int = 1> (x, indices)
            wide = Cast <to: int = 11> (windows)
            third = Constant <value_ints: ints = [2]> ()
            wide_mean = ReduceMean <keepdims: int = 1> (wide, third)
            apart = Sub (wide, wide_mean)
            squared = Mul (apart, apart)
            squares = ReduceSum <keepdims: int = 0> (squared, third)
            freedom = Sub (size, ddof)
            divisor = Cast <to: int = 11> (freedom)
            variance = Div (squares, divisor)
            deviation = Sqrt (variance)
            flat_mean = Squeeze (wide_mean, third)
            mean = CastLike (flat_mean, x)
            std = CastLike (deviation, x)
            is_nan = IsNaN (wide)
            nans = Cast <to: int = 7> (is_nan)
            most_nans = ReduceMax <keepdims: int = 0> (nans, third)
            has_nan = Cast <to: int = 9> (most_nans)
            least = ReduceMin <keepdims: int = 0> (wide, third)
            wide_min = Where (has_nan, flat_mean, least)
            min = CastLike (wide_min, x)
            greatest = ReduceMax <keepdims: int = 0> (wide, third)
            wide_max = Where (has_nan, flat_mean, greatest)
            max = CastLike (wide_max, x)
        }
    """
