import numpy as np

import opgate
from opgate import Case


@opgate.op('Joined(texts*: str[n]; by: str="-", parts: str[]=["", "ü"]) -> (y: str[n])', "Joins texts, in C.")
def joined(texts, *, by, parts):
    return np.array([by.join([*each, *parts]) for each in zip(*texts, strict=True)], object)


joined.c_kernel("joined")


@joined.cases
def _(types):
    first, second = np.array(["a", "", "ü 中"], object), np.array(["x", "y", ""], object)
    yield Case("one", {"texts": [first]})
    yield Case("two", {"texts": [first, second]}, {"by": "", "parts": ["b"]})
    yield Case("none", {"texts": [first[:0], second[:0]]})
