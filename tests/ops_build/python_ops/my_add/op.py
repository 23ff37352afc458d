import opgate
from opgate.ops_build.ops.my_add.cases import cases, large


@opgate.op("<T: f16|bf16|f32|f64|i32|i64> MyAdd(a: T[...], b: T[...]) -> (y: T[...])", "2 a + b, elementwise.")
def my_add(a, b):
    return 2 * a + b


my_add.formula()
my_add.cases(cases)
my_add.large(large)
