"""Checks the plugin library with TensorRT-RTX, which parses models, creates plugin layers and builds engines ahead of
time, without a GPU or a driver.

`inspect` runs this file in a separate process, because TensorRT-RTX must be on the loader's path before Python starts,
and because a bug in a plugin may end the process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

CAPABILITIES = ("SM80", "SM86", "SM89", "SM120")


def missing() -> str | None:
    """Returns why TensorRT-RTX can't be used, or None if it can."""
    for module in ("tensorrt_rtx_bindings", "tensorrt_rtx_libs"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed: pip install tensorrt_rtx_cu13_libs tensorrt_rtx_cu13_bindings"
    return None


def make_loader(folder: Path, python: Path | None = None) -> Path:
    """Makes a subfolder with TensorRT-RTX's libraries by all their names, for LD_LIBRARY_PATH, and returns it. They are
    those of this environment, or of the one whose interpreter is `python`."""
    if python is None:
        libs = Path(importlib.util.find_spec("tensorrt_rtx_libs").origin).parent  # type: ignore[union-attr, arg-type]
    else:
        (libs,) = python.parent.parent.glob("lib/python*/site-packages/tensorrt_rtx_libs")
    loader = folder / "lib"
    loader.mkdir(exist_ok=True)
    for file in libs.glob("*.so.*"):
        for name in (file.name, file.name.split(".so")[0] + ".so"):  # the parser opens it by the name without a version
            if not (loader / name).exists():
                (loader / name).symlink_to(file)
    return loader


def inspect(
    library: Path,
    models: Sequence[onnx.ModelProto],
    folder: Path,
    shapes: Sequence[dict[str, list[int]]] | None = None,
    capabilities: Sequence[str] = CAPABILITIES,
    python: Path | None = None,
) -> list[dict[str, Any]]:
    """Returns for each model what TensorRT-RTX says and builds. `python` is the interpreter of another environment, whose
    TensorRT-RTX it then is.

    `parsed` says whether the parser could read the model, `errors` are its errors. `layers` has the type of each layer,
    and the shape and dtype of each output. `engines` has the bytes of an engine for each capability, or 0.
    `log` has the warnings and errors.

    The argument `shapes` has the shapes of the inputs with unknown sizes, and the values of the inputs that are read on
    the host.
    """
    loader = make_loader(folder, python)
    for index, model in enumerate(models):
        onnx.save(model, folder / f"{index}.onnx")
    job = {"library": str(library.resolve()), "count": len(models), "shapes": shapes or [{}] * len(models)}
    (folder / "job.json").write_text(json.dumps({**job, "capabilities": list(capabilities)}))
    environment = os.environ | {"LD_LIBRARY_PATH": str(loader), "CUDA_MODULE_LOADING": "LAZY"}
    finished = subprocess.run(
        [str(python or sys.executable), __file__, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-4000:]
    answers: list[dict[str, Any]] = json.loads((folder / "answer.json").read_text())
    return answers


def _main(folder: Path) -> None:
    import tensorrt_rtx_bindings as trt

    job = json.loads((folder / "job.json").read_text())
    lines: list[str] = []

    class Log(trt.ILogger):
        def __init__(self) -> None:
            super().__init__()

        def log(self, severity: Any, message: str) -> None:
            if severity.value <= trt.ILogger.WARNING.value:
                lines.append(message)

    log = Log()
    registry = trt.get_plugin_registry()
    assert registry.load_library(job["library"]) is not None, "the plugin library does not load"
    answers = []
    for index in range(job["count"]):
        lines.clear()
        answers.append(_inspect(trt, log, folder / f"{index}.onnx", job["shapes"][index], job["capabilities"]))
        answers[-1]["log"] = list(lines)
    (folder / "answer.json").write_text(json.dumps(answers))


def _inspect(trt: Any, log: Any, file: Path, shapes: dict[str, list[int]], capabilities: list[str]) -> dict[str, Any]:
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    parsed = parser.parse(file.read_bytes())
    errors = [parser.get_error(i).desc() for i in range(parser.num_errors)]
    if not parsed:
        return {"parsed": False, "errors": errors, "layers": [], "engines": {}}
    layers = [
        {
            "type": layer.type.name,
            "outputs": [
                [list(layer.get_output(i).shape), layer.get_output(i).dtype.name] for i in range(layer.num_outputs)
            ],
        }
        for layer in (network.get_layer(i) for i in range(network.num_layers))
    ]
    engines = {}
    for capability in capabilities:
        config = builder.create_builder_config()
        profile = builder.create_optimization_profile()
        for i in range(network.num_inputs):
            tensor = network.get_input(i)
            if tensor.is_shape_tensor:
                values = shapes[tensor.name]
                profile.set_shape_input(tensor.name, values, values, values)
            elif -1 in tensor.shape:
                shape = shapes[tensor.name]
                profile.set_shape(tensor.name, shape, shape, shape)
        config.add_optimization_profile(profile)
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, capability), 0)
        engine = builder.build_serialized_network(network, config)
        engines[capability] = 0 if engine is None else engine.nbytes
    return {"parsed": True, "errors": errors, "layers": layers, "engines": engines}


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
