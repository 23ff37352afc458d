import numpy as np
import triton
import triton.language as tl

import opgate
from opgate import Case


@opgate.op("<T: f16|bf16|f32> RowSoftmax(x: T[n,c]; scale: float=1) -> (y: T[n,c])", "Softmax of rows, in any NumPy.")
def row_softmax(x, *, scale):
    if x.size == 0:
        return x
    e = np.exp(scale * (x - x.max(axis=1, keepdims=True)))
    return e / e.sum(axis=1, keepdims=True)


@row_softmax.triton(grid="n", BLOCK=256, num_warps=2)
@triton.jit
def row_softmax_kernel(x, y, c, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * c
    at = tl.arange(0, BLOCK)
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    for begin in range(0, c, BLOCK):
        most = tl.maximum(most, tl.load(x + row + begin + at, mask=begin + at < c, other=float("-inf")).to(tl.float32))
    greatest = tl.max(most, 0)
    total = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, c, BLOCK):
        value = tl.load(x + row + begin + at, mask=begin + at < c, other=float("-inf")).to(tl.float32)
        total += tl.exp(scale * (value - greatest))
    of_row = tl.sum(total, 0)
    for begin in range(0, c, BLOCK):
        value = tl.load(x + row + begin + at, mask=begin + at < c, other=0).to(tl.float32)
        tl.store(y + row + begin + at, tl.exp(scale * (value - greatest)) / of_row, mask=begin + at < c)


@row_softmax.cases
def _(types):
    rng = np.random.default_rng(0)
    for n, c in ((0, 4), (1, 1), (3, 255), (5, 600)):
        yield Case(f"{n} x {c}", {"x": rng.standard_normal((n, c)).astype(types["T"])}, {"scale": 0.5})
