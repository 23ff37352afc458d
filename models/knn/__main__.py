"""The tutorials' search for neighbours as a model: KNNQuery finds the three points nearest to each query.

`python -m models.knn export` exports it from PyTorch into the model repository, `picture` draws the README's picture.
"""

from __future__ import annotations

from pathlib import Path

import typer

from models.commands import OPS_LIBRARY, REPOSITORY, OpsLibrary, Repository, new_app

app = new_app("search for neighbours")

HERE = Path(__file__).parent


@app.command()
def export(repository: Repository = REPOSITORY) -> None:
    """Write knn/1/model.onnx to the model repository."""
    from models.knn.export import export as export_model

    typer.echo(export_model(repository))


@app.command()
def picture(
    path: Path = HERE / "neighbours.png",
    repository: Repository = REPOSITORY,
    ops_library: OpsLibrary = OPS_LIBRARY,
) -> None:
    """Draw a flat cloud and queries, with a line to each point that the served file finds."""
    from models.knn.picture import write_picture

    write_picture(repository, ops_library, path)
    typer.echo(path)


if __name__ == "__main__":
    app()
