"""The ops in TensorFlow, as functions and Keras layers.

    import tensorflow as tf, opgate.tensorflow

    opgate.tensorflow.mish(tf.ones(4))
    tf.keras.Sequential([tf.keras.layers.Dense(8), opgate.tensorflow.Mish()])

Importing this module loads the library that `opgate build` wrote. The functions work eagerly and in tf.function. Pass
tensors by position or by name, and attributes by name. An optional input is None or left out. A function computes all
outputs, even those that the signature calls optional. An op with optional outputs has a second function, such as
rms_norm_required, which computes only the others. A SavedModel with the ops needs the library before it is loaded:
import this module, or call tf.load_op_library with the path of the library.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from opgate.ops_build.adapters.tensorflow.functions import public_names
from opgate.ops_build.adapters.tensorflow.registration import load as _load
from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.op_table import Op

_BUILT = BuildOptions().library("tensorflow")
_LIBRARY = _load(_BUILT) if _BUILT.is_file() else None
_NAMES = public_names(_LIBRARY) if _LIBRARY else {}
globals().update(_NAMES)

__all__ = ["load", "ops"]
__all__ += list(_NAMES)


def load(path: Path | str) -> SimpleNamespace:
    """Returns the functions and layers of your op library, the lib<domain>_tensorflow.so that `opgate build FOLDER`
    wrote.

    Raises ImportError if TensorFlow can't load the library.
    """
    return SimpleNamespace(**public_names(_load(path)))


def ops(library: Path | str | None = None) -> list[Op]:
    """Returns the ops of opgate's library, or of `library`. Raises ImportError if TensorFlow can't load the library."""
    return list(_load(library or _BUILT).ops)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if _LIBRARY is None:  # no ImportError: pickle asks every module for any name
        raise AttributeError(f"{__name__} has no '{name}': {_BUILT} is not there: run opgate build")
    raise AttributeError(f"{__name__} has no '{name}'")
