"""The arena of ONNX Runtime: memory that runs have freed, and that it keeps for the next ones.

All sessions of the process share one. So a run of any session can give its free memory back to the system: a session's
own arena shrinks only at the end of a run of its own, when the tensors of its answer are still in it.
"""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any

import onnxruntime as ort
from onnx import GraphProto, TensorProto, helper

_KEY = "session.use_env_allocators"
_MAKING = Lock()


def use_shared(options: ort.SessionOptions) -> None:
    """Lets a session have its memory from the arena of the process."""
    with _MAKING:
        _session()
    options.add_session_config_entry(_KEY, "1")


def shrink() -> None:
    """Gives what no tensor needs back to the system. Takes a tenth of a second for a gigabyte."""
    if not _session.cache_info().currsize:
        return  # there is no arena
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    _session().run(None, {}, options)


@cache
def _session() -> Any:
    """Makes the arena. Returns a session that makes a constant in it.

    Its first run takes the first region of the arena, which never shrinks, so that this is a small one.
    """
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    defaults = {
        "max_mem": 0,
        "arena_extend_strategy": 0,
        "initial_chunk_size_bytes": -1,
        "max_dead_bytes_per_chunk": -1,
    }
    ort.create_and_register_allocator(info, ort.OrtArenaCfg(defaults))
    constant = helper.make_tensor("value", TensorProto.FLOAT, [], [0.0])
    node = helper.make_node("Constant", [], ["y"], value=constant)
    graph = helper.make_graph([node], "empty", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])])
    options = ort.SessionOptions()
    options.add_session_config_entry(_KEY, "1")
    session = small_session(graph, options)
    session.run(None, {})
    return session


def small_session(graph: GraphProto, options: ort.SessionOptions) -> Any:
    """Returns a session on the CPU of a graph that the gateway has made for itself."""
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
