"""The tutorials' activation as a model: y = LeakyRelu(x) with alpha 0.1, on rows of any length.

`python -m models.leaky_relu export` exports it from PyTorch into the model repository, `picture` draws the README's
picture.
"""

from __future__ import annotations

from pathlib import Path

import typer

from models.commands import OPS_LIBRARY, REPOSITORY, OpsLibrary, Repository, new_app

app = new_app("activation")

HERE = Path(__file__).parent


@app.command()
def export(repository: Repository = REPOSITORY) -> None:
    """Write leaky_relu/1/model.onnx to the model repository."""
    from models.leaky_relu.export import export as export_model

    typer.echo(export_model(repository))


@app.command()
def picture(
    path: Path = HERE / "curve.png",
    repository: Repository = REPOSITORY,
    ops_library: OpsLibrary = OPS_LIBRARY,
) -> None:
    """Draw what the served file answers to the numbers from -10 to 10."""
    from models.leaky_relu.picture import write_picture

    write_picture(repository, ops_library, path)
    typer.echo(path)


if __name__ == "__main__":
    app()
