from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from opgate.ops_build.case import Array, Case
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.onnx.one_node_model import one_node_model
from opgate.ops_build.op_table import read_table

#: run_op(name, inputs, attributes) returns the op's outputs in the order of its signature, bf16 as f32. An input can be
#: None: then it is left out.
RunOp = Callable[..., list[Array]]


@pytest.fixture(scope="session")
def run_op(library: Path) -> RunOp:
    return op_runner(library)


def op_runner(library: Path) -> RunOp:
    """A function that runs one op in ONNX Runtime. It reuses a session if ranks, dtypes and attributes are the same."""
    ops = {op.name: op for op in read_table(library)}
    names = {dtype.numpy: name for name, dtype in DTYPES.items()}
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.register_custom_ops_library(str(library.resolve()))
    sessions: dict[str, ort.InferenceSession] = {}

    def run(name: str, inputs: Mapping[str, Array | None], attributes: Mapping[str, Any] | None = None) -> list[Array]:
        op = ops[name]
        present = {key: np.asarray(value) for key, value in inputs.items() if value is not None}
        types = {t.type: names[present[t.name].dtype] for t in op.inputs if t.name in present}
        key = repr((name, sorted((key, value.ndim) for key, value in present.items()), types, attributes))
        one = one_node_model(op, Case(name, present, attributes or {}), types, static=False)
        if key not in sessions:
            sessions[key] = ort.InferenceSession(one.model.SerializeToString(), options, ["CPUExecutionProvider"])
        outputs: list[Array] = sessions[key].run(None, one.feeds)
        return outputs

    return run
