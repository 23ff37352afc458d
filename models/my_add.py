"""A minimal model with a custom op: y = MyAdd(a, b) = 2a + b on rows of four numbers.

`python -m models.my_add` writes it to the model repository.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import typer
from onnx import TensorProto

from models.graph_builder import DOMAIN, GraphBuilder


def my_add() -> onnx.ModelProto:
    """Returns the model: a, b: f32 (n, 4) -> y: f32 (n, 4)."""
    graph = GraphBuilder()
    graph.add("MyAdd", ["a", "b"], "y", domain=DOMAIN)
    a, b, y = ((name, TensorProto.FLOAT, ("n", 4)) for name in ("a", "b", "y"))
    return graph.model("my_add", [a, b], [y])


def main(repository: Path = Path("model_repository")) -> None:
    """Write my_add/1/model.onnx to the model repository."""
    path = repository / "my_add" / "1" / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(my_add(), path)
    typer.echo(path)


if __name__ == "__main__":
    typer.run(main)
