"""What the commands of the models share: their options, and a session of a served file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

REPOSITORY = Path("model_repository")
OPS_LIBRARY = Path("build/ops/libopgate_onnxruntime.so")

Repository = Annotated[Path, typer.Option(help="The model repository.")]
OpsLibrary = Annotated[Path, typer.Option(help="The op library for ONNX Runtime.")]


def new_app(model: str) -> typer.Typer:
    """Returns the commands of a model, none yet."""
    return typer.Typer(add_completion=False, no_args_is_help=True, help=f"The {model}, for the model repository.")


def say_exported(path: Path) -> None:
    """Prints where a file lies and how large it is."""
    typer.echo(f"{path}  {path.stat().st_size:,} bytes")


def session_of(model: str, repository: Path, ops_library: Path) -> Any:
    """Returns a session of the file that a repository serves, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(str(ops_library.resolve()))
    file = repository / model / "1" / "model.onnx"
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
