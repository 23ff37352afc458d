"""How long each node of a model takes in ONNX Runtime."""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from opgate.onnx_tools.run_model import Libraries, RunError
from opgate.onnx_tools.sessions import one_line, session
from opgate.ops_build.case import Array
from opgate.ops_build.onnx.nodes import OF_ONNX_RUNTIME
from opgate.service.execution.engine_profile import domains_of, read_profile

#: Runs that are measured. One before them is not: it makes what ONNX Runtime makes once.
RUNS = 20


@dataclass(frozen=True, slots=True)
class NodeTime:
    """A node as ONNX Runtime runs it: its op with the domain, whether that is a custom op, and the median of its
    microseconds in a run."""

    name: str
    op: str
    custom: bool
    microseconds: float


@dataclass(frozen=True, slots=True)
class OpTime:
    """All nodes of an op: their number, their microseconds in a run, and the share of these in those of all nodes."""

    op: str
    custom: bool
    nodes: int
    microseconds: float
    share: float


def measure(model: onnx.ModelProto, libraries: Libraries, feeds: Mapping[str, Array]) -> list[NodeTime]:
    """Runs a model and returns its nodes in the order in which they run. ONNX Runtime may have joined, replaced and
    added some. A node with a graph of its own, such as Loop, has the time of the nodes in it too.

    Raises SessionError and RunError.
    """
    found: dict[tuple[str, str, str | None], list[int]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="opgate-profile-") as folder:
        loaded = session(model, libraries.paths, profile=Path(folder))
        try:
            for _ in range(1 + RUNS):
                loaded.run(None, dict(feeds))
        except Exception as error:  # the classes of onnxruntime's exceptions share no other base
            raise RunError(one_line(error)) from None
        finally:
            profile = Path(loaded.end_profiling())
        for run in read_profile(profile, domains_of(loaded))[1:]:
            total: dict[tuple[str, str, str | None], int] = defaultdict(int)
            for operator in run:
                total[operator.name, operator.op, operator.domain] += operator.duration_us
            for key, microseconds in total.items():
                found[key].append(microseconds)
    times = []
    for (name, op, domain), of_runs in found.items():
        custom = domain is not None and domain not in OF_ONNX_RUNTIME
        label = f"{domain}::{op}" if domain else op
        times.append(NodeTime(name, label, custom, statistics.median(of_runs)))
    return times


def by_op(nodes: Sequence[NodeTime]) -> list[OpTime]:
    """Returns the ops, those that take longest first."""
    whole = sum(node.microseconds for node in nodes) or 1.0
    groups: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for node in nodes:
        groups[node.op, node.custom].append(node.microseconds)
    times = [OpTime(op, custom, len(each), sum(each), sum(each) / whole) for (op, custom), each in groups.items()]
    return sorted(times, key=lambda time: -time.microseconds)
