import numpy as np

import opgate
from opgate import Case


@opgate.op(
    'Tagged(text: str[n]; tag: str=">", leave: str[]=[]) -> (tagged: str[k<=n], place: i64[k])',
    "Sets a tag before texts, without those that are left out.",
)
def tagged(text, *, tag, leave):
    place = np.array([i for i, each in enumerate(text) if each not in leave], np.int64)
    return np.array([tag + text[i] for i in place], object), place


@tagged.cases
def _(types):
    for text in ([], ["a", "", "ü 中", "a"]):
        yield Case(f"{len(text)} texts", {"text": np.array(text, object)})
        yield Case(f"{len(text)} texts without a", {"text": np.array(text, object)}, {"tag": "ß:", "leave": ["a"]})
