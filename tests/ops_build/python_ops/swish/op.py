import opgate
from opgate.ops_build.ops.swish.cases import cases, large


@opgate.op("<T: f16|bf16|f32|f64> Swish(x: T[...]; alpha: float=1) -> (y: T[...])", "x sigmoid(alpha x), elementwise.")
def swish(x, *, alpha):
    return x * opgate.sigmoid(alpha * x)


swish.formula()
swish.cases(cases)
swish.large(large)
