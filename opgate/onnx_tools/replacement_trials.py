"""Tries a candidate: the nodes of the model against the op that could replace them, on the same inputs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import NodeProto, helper, numpy_helper

from opgate.onnx_tools.foreign import opset_of
from opgate.onnx_tools.fusions import Candidate
from opgate.onnx_tools.rewrite_text import Names, instantiate
from opgate.onnx_tools.sessions import SessionError, one_line, session
from opgate.onnx_tools.values import Values
from opgate.ops_build.case import Array

#: How far results may be apart, as a part of the greatest magnitude among those of the model.
TOLERANCES: Mapping[str, float] = {"f16": 5e-3, "f32": 2e-5, "f64": 1e-10}
#: How many sets of random numbers are compared beside the tensors of the model's own run.
RANDOM_SETS = 2
#: How often both are run in turn, at least and at most, and for how many seconds.
ROUNDS, MOST_ROUNDS, SECONDS, WHOLE_SECONDS = 5, 200, 0.4, 3.0

Run = Callable[[], object]
#: Measures two runs in turn. Returns their median times in seconds.
Measure = Callable[[Run, Run], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a candidate. `reason` is empty if it is kept. Times are in seconds, None if it was not timed."""

    op: str
    node: str
    reason: str = ""
    difference: float | None = None
    before: float | None = None
    after: float | None = None

    @property
    def kept(self) -> bool:
        return not self.reason


def medians(before: Run, after: Run, seconds: float = SECONDS) -> tuple[float, float]:
    """Runs two functions in turn and returns the median of the seconds that each takes. Both are run for so many
    `seconds` together, or MOST_ROUNDS times."""
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    for function in (before, after):
        function()
    while len(times[0]) < ROUNDS or (time.perf_counter() < end and len(times[0]) < MOST_ROUNDS):
        for function, kept in zip((before, after), times, strict=True):
            start = time.perf_counter()
            function()
            kept.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def medians_of_whole(before: Run, after: Run) -> tuple[float, float]:
    """Measures as `medians`, for as long as it takes to tell two models apart that differ in a few nodes."""
    return medians(before, after, WHOLE_SECONDS)


@dataclass
class Trials:
    """Tries candidates of one model.

    `tensors` are the values of the candidates' inputs. `libraries` have the ops. Candidates of the same op, settings
    and shapes are measured once.
    """

    model: onnx.ModelProto
    values: Values
    tensors: Mapping[str, Array]
    libraries: Sequence[Path]
    folder: Path | None = None
    measure: Measure = medians
    _known: dict[tuple[object, ...], Outcome] = field(default_factory=dict)

    def outcome(self, candidate: Candidate) -> Outcome:
        """Tries a candidate."""
        label = candidate.output[1]
        missing = [tensor for tensor in candidate.inputs.values() if tensor not in self.tensors]
        if missing:
            return Outcome(candidate.op, label, f"the shape of '{missing[0]}' is not known, so nothing was tried")
        before_nodes = slice_of(candidate.output[1], set(candidate.inputs.values()), self.values)
        arrays = [self.tensors[tensor] for tensor in candidate.inputs.values()]
        key = (
            candidate.body,
            tuple(node.op_type for node in before_nodes),
            tuple((array.shape, array.dtype.str) for array in arrays),
        )
        if (known := self._known.get(key)) is None:
            known = self._known[key] = self._try(candidate, before_nodes)
        return Outcome(known.op, label, known.reason, known.difference, known.before, known.after)

    def _try(self, candidate: Candidate, before_nodes: list[NodeProto]) -> Outcome:
        op, label = candidate.op, candidate.output[1]
        feeds = {name: self.tensors[name] for name in candidate.inputs.values()}
        renamed = {**candidate.inputs, candidate.output[0]: label}
        opset = opset_of(self.model)
        after_nodes = instantiate(candidate.body, renamed, [candidate.output[0]], Names(self.model), opset, "trial")
        try:
            before = self._session(before_nodes, feeds, label)
            after = self._session(after_nodes, feeds, label)
        except SessionError as error:
            return Outcome(op, label, f"it doesn't load: {error}")
        variable = {name: array for name, array in feeds.items() if self.values.constant(name) is None}
        rng = np.random.default_rng(0)
        sets = [variable]
        sets += [{name: random_like(array, rng) for name, array in variable.items()} for _ in range(RANDOM_SETS)]
        try:
            pairs = [(before.run(None, values)[0], after.run(None, values)[0]) for values in sets]
        except Exception as error:  # the classes of onnxruntime's exceptions share no other base
            return Outcome(op, label, f"it doesn't run: {one_line(error)}")
        for expected, got in pairs:
            if expected.shape != got.shape or expected.dtype != got.dtype:
                told = f"expected {expected.dtype} {list(expected.shape)}, got {got.dtype} {list(got.shape)}"
                return Outcome(op, label, f"the results differ: {told}")
        apart = max(difference(expected, got) for expected, got in pairs)
        dtype = self.values.dtype(next(iter(candidate.inputs.values()))) or "f32"
        if not apart <= TOLERANCES[dtype]:  # also where a difference is NaN
            return Outcome(op, label, "the results differ", apart)
        times = self.measure(lambda: before.run(None, variable), lambda: after.run(None, variable))
        return Outcome(op, label, "" if times[1] < times[0] else "it takes no less time", apart, *times)

    def _session(self, nodes: Sequence[NodeProto], feeds: Mapping[str, Array], output: str) -> ort.InferenceSession:
        """Returns a session of some nodes alone. Their constant inputs are constants there too."""
        constants = {
            tensor for node in nodes for tensor in node.input if tensor not in feeds or self._is_constant(tensor)
        }
        made = {tensor for node in nodes for tensor in node.output}
        arrays = {name: self.values.constant(name) for name in sorted(constants - made) if name}
        initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items() if array is not None]
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in feeds.items()
            if not self._is_constant(name)
        ]
        result = helper.make_empty_tensor_value_info(output)
        graph = helper.make_graph(nodes, "trial", inputs, [result], initializers)
        opsets = [opset for opset in self.model.opset_import if opset.domain != "opgate"]
        opsets.append(helper.make_opsetid("opgate", 1))
        model = helper.make_model(graph, opset_imports=opsets, ir_version=self.model.ir_version)
        return session(model, self.libraries)

    def _is_constant(self, tensor: str) -> bool:
        return self.values.constant(tensor) is not None


def slice_of(output: str, inputs: set[str], values: Values) -> list[NodeProto]:
    """Returns the nodes that compute a tensor from other tensors, each behind those that it needs."""
    nodes: dict[tuple[str, ...], NodeProto] = {}
    stack = [(output, False)]
    while stack:
        tensor, seen = stack.pop()
        node = values.producers.get(tensor)
        if node is None or tensor in inputs or tuple(node.output) in nodes:
            continue
        if seen:
            nodes[tuple(node.output)] = node
        else:
            stack.append((tensor, True))
            stack += [(name, False) for name in node.input if name]
    return list(nodes.values())


def difference(expected: Array, got: Array) -> float:
    """Returns the greatest difference of two arrays, as a part of the greatest magnitude in the first one, at least 1.
    Where both are NaN or the same infinity they don't differ."""
    if not expected.size:
        return 0.0
    a, b = expected.astype(np.float64), got.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    scale = max(1.0, float(np.abs(a[np.isfinite(a)]).max(initial=0.0)))
    with np.errstate(invalid="ignore"):
        return float(np.where(same, 0.0, np.abs(a - b)).max() / scale)


def random_like(array: Array, rng: np.random.Generator) -> Array:
    """Returns random floats of the same type and shape. Other tensors are returned as they are, because their values
    may be indices."""
    return np.asarray(rng.standard_normal(array.shape) * 3).astype(array.dtype) if array.dtype.kind == "f" else array
