"""Models in which the data of two clients lies side by side. They give it back as it came, so that it can be found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from tests.service.onnx_models import save, value, write_config
from tests.service.padded_models import SCATTERED, parameters
from tests.system.test_python_models import write

GATEWAY, WORKER, PYTHON, PROCESSES = "gateway", "worker", "model.py", "two processes"
BATCHED, ALONE = "batched", "alone"
#: Requests wait a little for others: eight of them run at once.
WAITS = "dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 4000 }"
ISOLATED = 'parameters { key: "isolation" value { string_value: "process" } }'
DECOUPLED = "model_transaction_policy { decoupled: true }"
CACHE = "response_cache { enable: true }"
#: No sequence ends because a machine is slow.
IDLE = "max_sequence_idle_microseconds: 60000000"


def batching(batched: bool) -> str:
    """Returns the part of a config that says whether requests share runs."""
    return f"max_batch_size: 8 {WAITS}\n" if batched else "max_batch_size: 0\n"


def tensor(name: str, kind: str, *dims: int) -> str:
    """Returns a tensor of a config."""
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: {list(dims)} }}'


# Models in ONNX


def pair(repository: Path, name: str, config: str) -> None:
    """Saves a model that gives back its inputs: numbers x [batch, n] as y, and texts word [batch, m] as same."""
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["word"], ["same"])]
    inputs = [value("x", "FP32", ["batch", "n"]), value("word", "BYTES", ["batch", "m"])]
    outputs = [value("y", "FP32", ["batch", "n"]), value("same", "BYTES", ["batch", "m"])]
    save(repository, name, nodes, inputs, outputs, config=config)


def picking(repository: Path, name: str, config: str) -> None:
    """Saves a model that gives x back as y, and table[i] as z. The engine refuses a whole batch for an i that is out of
    range, and says which."""
    table = helper.make_tensor("table", TensorProto.INT64, [8], range(8))
    nodes = [helper.make_node("Gather", ["table", "i"], ["z"]), helper.make_node("Identity", ["x"], ["y"])]
    inputs = [value("x", "INT64", ["batch", 1]), value("i", "INT64", ["batch", 1])]
    outputs = [value("y", "INT64", ["batch", 1]), value("z", "INT64", ["batch", 1])]
    save(repository, name, nodes, inputs, outputs, initializers=[table], config=config)


def memory(repository: Path, name: str, strategy: str, batched: bool, texts: bool, extra: str) -> None:
    """Saves a model with a state: `before` is the x of the request before in the sequence, zeros in the first. `whose`
    is the sequence's id, a text or a number."""
    leading = ["batch"] if batched else []
    kind, named = ("BYTES", "STRING") if texts else ("UINT64", "UINT64")
    pairs = {"x": "last", "id": "whose", "state": "before"}
    nodes = [helper.make_node("Identity", [source], [target]) for source, target in pairs.items()]
    floats = {name: value(name, "FP32", [*leading, 4]) for name in ("x", "state", "before", "last")}
    ids = [value(name, kind, [*leading, 1]) for name in ("id", "whose")]
    config = f"""max_batch_size: {8 * batched} input [ {tensor("x", "FP32", 4)} ]
        output [ {tensor("before", "FP32", 4)}, {tensor("whose", named, 1)} ]
        sequence_batching {{ {strategy} {IDLE}
          control_input [ {{ name: "id" control [ {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_{named} }} ] }} ]
          state [ {{ input_name: "state" output_name: "last" data_type: TYPE_FP32 dims: [ 4 ] }} ] }} {extra}"""
    inputs, outputs = [floats["x"], floats["state"], ids[0]], [floats["before"], floats["last"], ids[1]]
    save(repository, name, nodes, inputs, outputs, config=config)


def of_op(
    repository: Path,
    name: str,
    op: str,
    inputs: list[Any],
    outputs: list[Any],
    config: str,
    *,
    domain: str = "fixture_ops",
    initializers: tuple[Any, ...] = (),
    **attributes: Any,
) -> None:
    """Saves a model of one op. Its inputs are those of the model, then the initializers."""
    given = [tensor.name for tensor in (*inputs, *initializers)]
    node = helper.make_node(op, given, [tensor.name for tensor in outputs], domain=domain, **attributes)
    graph = helper.make_graph([node], name, inputs, [o for o in outputs if "unused" not in o.name], list(initializers))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "model.onnx")
    library = f'model_operations {{ op_library_filename: "lib{domain}_onnxruntime.so" }}'
    (folder.parent / "config.pbtxt").write_text(f"{library} {config}")


def columns(repository: Path, name: str, config: str, weights: list[float]) -> None:
    """Saves a model that multiplies the columns of x with weights that its kernel has read when it was prepared."""
    outputs = [value("y", "FP32", ["batch", 4]), value("unused1", "INT64", []), value("unused2", "INT32", [])]
    weight = helper.make_tensor("weight", TensorProto.FLOAT, [4], weights)
    of_op(
        repository, name, "ScaledColumns", [value("x", "FP32", ["batch", 4])], outputs, config, initializers=(weight,)
    )


NUMBERS = f"""input [ {{ name: "data" data_type: TYPE_UINT8 dims: [ -1 ] allow_ragged_batch: true }} ]
batch_input [ {{ kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends" data_type: TYPE_INT32 source_input: "data" }} ]
output [ {{ name: "value" data_type: TYPE_INT64 dims: [ 1 ] reshape {{ shape: [ ] }} }},
  {{ name: "status" data_type: TYPE_INT32 dims: [ 1 ] reshape {{ shape: [ ] }} }} ]
{parameters(row_status_output="status", row_status_messages="1=no integer")}"""


def numbers(repository: Path, name: str, config: str) -> None:
    """Saves a model that reads the text of each row as an integer. A row that is none has a status of its own."""
    inputs = [value("data", "UINT8", ["total"]), value("ends", "INT32", ["n"])]
    outputs = [value("value", "INT64", ["n"]), value("status", "INT32", ["n"])]
    of_op(repository, name, "ParseNumber", inputs, outputs, config + NUMBERS)


#: The tensors of `scattered`, whose rows have different lengths.
RAGGED = SCATTERED[SCATTERED.index("input [") :]
MOST = 16  # boxes that `boxes` gives


def boxes(repository: Path, name: str, config: str) -> None:
    """Saves a model that gives the boxes that it keeps, and as many zeros as are missing to MOST."""
    inputs = [value("boxes", "FP32", ["batch", "a", 4]), value("scores", "FP32", ["batch", 1, "a"])]
    sizes = {"kept": [4], "kept_scores": [], "labels": []}
    kinds = {"kept": "FP32", "kept_scores": "FP32", "labels": "INT32"}
    outputs = [value(name, kinds[name], ["batch", MOST, *more]) for name, more in sizes.items()]
    outputs.append(value("count", "INT32", ["batch"]))
    batched = "max_batch_size: 8" in config
    rows = [] if batched else [-1]
    count = (
        tensor("count", "INT32", 1).replace("}", "reshape { shape: [ ] } }")
        if batched
        else tensor("count", "INT32", -1)
    )
    stated = [tensor(name, "INT32" if name == "labels" else "FP32", *rows, MOST, *more) for name, more in sizes.items()]
    given = [tensor("boxes", "FP32", *rows, -1, 4), tensor("scores", "FP32", *rows, 1, -1)]
    config += f"input [ {', '.join(given)} ] output [ {', '.join([*stated, count])} ]"
    of_op(repository, name, "MultiClassNMS", inputs, outputs, config, domain="opgate", max_detections=MOST)


def ensemble(repository: Path, name: str, steps: list[dict[str, Any]], batched: bool, *, has_texts: bool) -> None:
    """Writes an ensemble of an input X and the outputs Y and, if `has_texts`, TOLD."""
    parts = []
    for step in steps:
        maps = [f'input_map {{ key: "{k}" value: "{v}" }}' for k, v in step["inputs"].items()]
        maps += [f'output_map {{ key: "{k}" value: "{v}" }}' for k, v in step["outputs"].items()]
        parts.append(f'{{ model_name: "{step["model"]}" model_version: -1 {" ".join(maps)} }}')
    dims = [-1] if batched else [-1, -1]
    outputs = [tensor("Y", "FP32", *dims), *([tensor("TOLD", "STRING", 1)] if has_texts else [])]
    write_config(
        repository,
        name,
        f"""platform: "ensemble" max_batch_size: {8 * batched} input [ {tensor("X", "FP32", *dims)} ]
        output [ {", ".join(outputs)} ] ensemble_scheduling {{ step [ {", ".join(parts)} ] }}""",
    )


# Models in Python

HEAD = """
import json, threading
import numpy as np
import triton_python_backend_utils as pb_utils

def of(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

def texts(x, *told):
    '''A text for each row of a batch, or one.'''
    found = np.empty((len(x), 1) if BATCHED else (1,), np.object_)
    found[:] = json.dumps(told, sort_keys=True).encode()
    return found

def about(request):
    return request.request_id(), json.loads(request.parameters())

def answer(**tensors):
    return pb_utils.InferenceResponse([pb_utils.Tensor(*one) for one in tensors.items()])
"""
#: Gives back its input, and what it is told of the request.
ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(Y=of(r, "X"), TOLD=texts(of(r, "X"), *about(r))) for r in requests]
"""
#: Keeps inputs and results of calls as arrays, and says how many of them have changed since.
KEEPS = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        found = []
        for r in requests:
            called = pb_utils.InferenceRequest(model_name=CALLED, requested_output_names=["y"],
                                               inputs=[pb_utils.Tensor("x", of(r, "X"))]).exec()
            y = pb_utils.get_output_tensor_by_name(called, "y").as_numpy()
            self.kept += [(array, array.tobytes()) for array in (of(r, "X"), y)]
            changed = sum(array.tobytes() != content for array, content in self.kept)
            found.append(answer(Y=y, TOLD=texts(of(r, "X"), changed)))
        return found
"""
#: Calls a model, one call after the other or two at once, and hands its own id and parameters on.
CALLS = """
import asyncio

class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*[self.one(r) for r in requests])

    async def one(self, r):
        id, parameters = about(r)
        x = of(r, "X")
        def call(array):
            return pb_utils.InferenceRequest(model_name=CALLED, requested_output_names=NAMES[1:], request_id=id,
                                             parameters=parameters, inputs=[pb_utils.Tensor(NAMES[0], array)])
        if parameters["times"] == 1:
            found = [call(x).exec()]
        else:
            found = await asyncio.gather(call(x).async_exec(), call(2 * x).async_exec())
            twice = pb_utils.get_output_tensor_by_name(found[1], NAMES[1]).as_numpy()
            assert (twice == 2 * x).all()
        if found[0].has_error():
            return pb_utils.InferenceResponse(error=found[0].error())
        tensors = [pb_utils.get_output_tensor_by_name(found[0], name).as_numpy() for name in NAMES[1:]]
        return answer(Y=tensors[0], TOLD=tensors[1] if len(tensors) > 1 else texts(x, id))
"""
#: Remembers what each sequence sent before, by its correlation id.
REMEMBERS = """
class TritonPythonModel:
    def initialize(self, args):
        self.states = {}

    def execute(self, requests):
        found = []
        for r in requests:
            id, x = r.correlation_id(), of(r, "X")
            if r.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.states[id] = 0 * x
            before, self.states[id] = self.states[id], x
            if r.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
                del self.states[id]
            found.append(answer(Y=before, TOLD=texts(x, id)))
        return found
"""
#: Fails as a request asks for: with an error of its own, or with an exception for all that run with it.
FAILS = """
class TritonPythonModel:
    def execute(self, requests):
        found = []
        for r in requests:
            _, parameters = about(r)
            if parameters.get("raises"):
                raise ValueError(f"{parameters['text']} of {of(r, 'X').reshape(-1).tolist()}")
            if parameters.get("fails"):
                text = f"{parameters['text']} of {of(r, 'X').reshape(-1).tolist()}"
                found.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(text)))
            else:
                found.append(answer(Y=of(r, "X"), TOLD=texts(of(r, "X"), *about(r))))
        return found
"""
#: Sends three responses to each request from a thread. If a request asks for it, its run fails at once, and its
#: response is sent when the run of another request is under way.
SENDS = """
class TritonPythonModel:
    def initialize(self, args):
        self.next = threading.Event()

    def execute(self, requests):
        self.next.set()
        self.next = threading.Event()
        for r in requests:
            if about(r)[1].get("late"):
                threading.Thread(target=self.late, args=(r, self.next)).start()
                raise ValueError("its response comes too late")
            threading.Thread(target=self.send, args=(r.get_response_sender(), of(r, "X"), about(r))).start()

    def send(self, sender, x, told):
        for i in range(3):
            sender.send(answer(Y=x + i, TOLD=texts(x, *told)))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def late(self, r, other):
        other.wait()
        try:
            r.get_response_sender().send(answer(Y=of(r, "X"), TOLD=texts(of(r, "X"), *about(r))))
        except Exception:
            return
        pb_utils.Logger.log_error("a response was sent within another run")
"""
#: Gives each client what the one before it sent, in four ways. The search must find it.
LEAKS = """
class TritonPythonModel:
    def initialize(self, args):
        self.last = np.zeros((1, 4), np.float32), "nobody", {}

    def execute(self, requests):
        found = []
        for r in requests:
            x, (id, parameters) = of(r, "X"), about(r)
            (before, other, theirs), self.last = self.last, (x, id, parameters)
            how = parameters["how"]
            if how == "error":
                error = pb_utils.TritonError(f"not after {before.reshape(-1).tolist()}")
                found.append(pb_utils.InferenceResponse(error=error))
                continue
            if how == "log":
                pb_utils.Logger.log_info(f"got {x.reshape(-1).tolist()}")
            y = np.concatenate([x, before], axis=-1) if how == "numbers" else x
            found.append(answer(Y=y, TOLD=texts(x, *((other, theirs) if how == "texts" else (id, parameters)))))
        return found
"""


def in_python(repository: Path, name: str, source: str, batched: bool, extra: str = "", **constants: Any) -> None:
    """Writes a model in Python with an input X, an output Y of the same type and a text TOLD.

    `extra` is the rest of its config, with the batching, and `constants` stand for names in the source.
    """
    for key, constant in {**constants, "BATCHED": batched}.items():
        source = source.replace(key, repr(constant))
    dims = [-1] if batched else [-1, -1]
    config = (
        f"input [ {tensor('X', 'FP32', *dims)} ] output [ {tensor('Y', 'FP32', *dims)}, {tensor('TOLD', 'STRING', 1)} ]"
    )
    write(repository, name, f"{config} {extra}", HEAD.replace("BATCHED", repr(batched)) + source)
