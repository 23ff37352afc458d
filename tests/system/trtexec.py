"""Stands in for trtexec where there is no GPU: TensorRT-RTX parses the model and builds an engine.

It takes the options that `opgate plan` gives and no others. `install` writes the program.
"""

import argparse
import sys
from pathlib import Path


def shapes(text: str) -> dict[str, list[int]]:
    pairs = (part.split(":") for part in text.split(",") if part)
    return {name: [int(size) for size in sizes.split("x")] for name, sizes in pairs}


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("onnx", "saveEngine", "staticPlugins"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("minShapes", "optShapes", "maxShapes"):
        parser.add_argument(f"--{name}", type=shapes, default={})
    parser.add_argument("--skipInference", action="store_true", required=True)
    options = parser.parse_args()

    import tensorrt_rtx_bindings as trt

    log = trt.Logger(trt.Logger.WARNING)
    assert trt.get_plugin_registry().load_library(options.staticPlugins) is not None
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(options.onnx):
        print(*(parser.get_error(i).desc() for i in range(parser.num_errors)), sep="\n", file=sys.stderr)
        return 1
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        if -1 in tensor.shape:
            profile.set_shape(
                tensor.name, *(by[tensor.name] for by in (options.minShapes, options.optShapes, options.maxShapes))
            )
    config.add_optimization_profile(profile)
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        return 1
    Path(options.saveEngine).write_bytes(engine)
    print(
        f"{network.num_layers} layers, plugins:",
        sum(network.get_layer(i).type.name.startswith("PLUGIN") for i in range(network.num_layers)),
    )
    return 0


def install(folder: Path) -> Path:
    """Writes the program `trtexec` into a folder, which may be mounted elsewhere, and returns its path."""
    from tests.ops_build.tensorrt_rtx import make_loader

    make_loader(folder)
    program = folder / "trtexec"
    # TensorRT-RTX must be on the loader's path before Python starts.
    program.write_text(
        "#!/bin/sh\n"
        'export LD_LIBRARY_PATH="$(dirname "$0")/lib" CUDA_MODULE_LOADING=LAZY\n'
        f'exec {sys.executable} {Path(__file__).resolve()} "$@"\n'
    )
    program.chmod(0o755)
    return program


if __name__ == "__main__":
    sys.exit(main())
