"""Models with ops of several libraries, and models that get the trusted library that has their op."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from onnx import helper

from opgate.service.core.request import Request
from tests.service.onnx_models import save, value


@pytest.fixture
def trusting(library, fixture_library, load):
    """A function that loads the repository with both libraries trusted."""
    folders = f"{library.parent}{os.pathsep}{fixture_library.parent}"
    return lambda: load(ops_path=folders)


def two_ops(repository, config):
    """Saves y = the sum of mish(x) and x, each by an op of another library."""
    nodes = [
        helper.make_node("Mish", ["x"], ["m"], domain="opgate"),
        helper.make_node("SumAll", ["m", "x"], ["y"], domain="fixture_ops"),
    ]
    shape = ["batch", 4]
    folder = save(repository, "m", nodes, [value("x", "FP32", shape)], [value("y", "FP32", shape)], config=config)
    model = onnx.load(folder / "1" / "model.onnx")
    model.opset_import.extend([helper.make_opsetid("opgate", 1), helper.make_opsetid("fixture_ops", 1)])
    onnx.save(model, folder / "1" / "model.onnx")


def check(gateway):
    model = gateway.find("m").model
    request = Request({"x": np.full((1, 4), 20, np.float32)}, 1, "k", ("y",))
    model.executor.try_out(request)
    np.testing.assert_allclose(request.result["y"], 40)  # mish(20) is 20
    return list(model.config.model_operations.op_library_filename)


def test_a_config_may_name_several(repository, trusting, library, fixture_library):
    names = [library.name, fixture_library.name]
    named = "".join(f'op_library_filename: "{name}" ' for name in names)
    two_ops(repository, f"max_batch_size: 4 model_operations {{ {named} }}")
    assert check(trusting()) == names


def test_a_model_gets_the_trusted_libraries_that_it_needs(repository, trusting, library, fixture_library, caplog):
    two_ops(repository, None)
    with caplog.at_level("INFO"):
        names = check(trusting())
    assert sorted(names) == sorted([library.name, fixture_library.name])
    assert f"op library {library.name}" in caplog.text and "max_batch_size 4" in caplog.text


def test_one_that_nobody_trusts_is_not_taken(repository, reason):
    two_ops(repository, None)
    assert "is not known to ONNX Runtime" in reason("m")


def test_two_of_one_domain(repository, trusting, library):
    copy = repository / "m" / "libcopy.so"
    two_ops(
        repository,
        f'max_batch_size: 4 model_operations {{ op_library_filename: "{library.name}" '
        'op_library_filename: "libcopy.so" }',
    )
    copy.write_bytes(library.read_bytes())
    assert "libcopy.so have ops of one domain" in trusting().catalog.index()[0][3]
