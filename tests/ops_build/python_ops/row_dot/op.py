import opgate


@opgate.op("<T: f16|bf16|f32|f64> RowDot(a: T[..., n], b: T[..., n]) -> (y: T[...])", "The products of rows.")
def row_dot(a, b):
    return (a * b).sum(axis=-1)


row_dot.formula()
