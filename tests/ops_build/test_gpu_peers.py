"""The functions that `make gpu-check` times beside the ops, on the CPU: they compute what the ops compute."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.engines.comparison import difference
from opgate.ops_build.op_folder import folder_of, run_reference
from opgate.ops_build.op_table import Op, read_table

pytest.importorskip("torch")

from opgate.ops_build.gpu_check.peers import NO_PEER, PEERS, peer_arguments


@pytest.fixture(scope="module")
def ops(library: Path) -> list[Op]:
    return read_table(library)


@pytest.mark.parametrize("name", sorted(PEERS))
def test_peers_compute_what_the_op_computes(ops: list[Op], name: str) -> None:
    """In some cases: a peer knows the attributes and the optional inputs of the op's large case, and no others."""
    op = next(op for op in ops if op.name == name)
    types = next((types for types in op.type_choices() if "f32" in types.values()), {})
    folder = folder_of(op, [SOURCE / "ops"])
    for peer in PEERS[name]:
        if not peer.exact or peer.name == "torchvision" or "torch_cluster" in peer.name:
            continue
        call = inspect.unwrap(peer.call)  # what torch.compile would compile
        right = 0
        for case in folder.cases(numpy_types(types)):
            sizes = [np.size(array) for array in case.inputs.values()]
            if case.error or min(sizes) < 1 or max(sizes) < 5:
                continue
            try:
                outputs = call(peer_arguments(op, case, types, "cpu"))
            except (RuntimeError, LookupError, TypeError, ValueError, AttributeError):
                continue
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            expected = run_reference(op, folder.reference, case).values()
            right += not any(
                difference(output.numpy(), array, (1e-4, 1e-4))
                for output, array in zip(outputs, expected, strict=False)
            )
        assert right >= 2, f"{peer.name} is right in {right} cases"


def test_every_op_on_cuda_has_a_peer_or_a_reason(ops: list[Op]) -> None:
    on_cuda = {op.name for op in ops if folder_of(op, [SOURCE / "ops"]).has_cuda_kernel}
    assert on_cuda == set(PEERS) ^ set(NO_PEER) == set(PEERS) | set(NO_PEER)
