"""`python -m models.bev_segmenter`: train, export, evaluate, and make the example and the README's picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from models.bev_segmenter.network import View
from models.commands import OPS_LIBRARY, REPOSITORY, OpsLibrary, Repository, new_app, say_exported

app = new_app("bird's-eye segmenter")

HERE = Path(__file__).parent
BUILD = HERE / "build"

Seed = Annotated[int, typer.Option(help="Seed of the weights and of the streets.")]


@app.command()
def train(view: View = View.splat, steps: int = 1000, streets: int = 4000, seed: Seed = 0, threads: int = 1) -> None:
    """Train a network."""
    from models.bev_segmenter.train import Recipe
    from models.bev_segmenter.train import train as train_network

    recipe = Recipe(view=view, steps=steps, streets=streets, seed=seed, threads=threads)
    typer.echo(train_network(recipe, BUILD))


@app.command()
def evaluate(view: View = View.splat, seed: Seed = 0, streets: int = 500) -> None:
    """Print the intersection over union of the occupied cells of streets that are not in the training data."""
    from models.bev_segmenter.scenes import held_out_scenes
    from models.bev_segmenter.train import iou_of, load

    iou = iou_of(load(BUILD / f"{view}-{seed}.pt", view), held_out_scenes(streets))
    typer.echo(f"{view}: IoU {iou:.4f} in {streets} streets")


@app.command()
def export(repository: Repository = REPOSITORY, seed: Seed = 0) -> None:
    """Write bev_segmenter/1/model.onnx to the model repository."""
    from models.bev_segmenter.export import export as export_model

    say_exported(export_model(BUILD / f"{View.splat}-{seed}.pt", repository))


@app.command()
def examples(folder: Path = Path("docs/examples/street")) -> None:
    """Write the pictures of a test street as PNGs, which are named by their cameras."""
    from models.bev_segmenter.pictures import write_examples

    for path in write_examples(folder):
        typer.echo(path)


@app.command()
def picture(
    path: Path = HERE / "streets.png",
    repository: Repository = REPOSITORY,
    ops_library: OpsLibrary = OPS_LIBRARY,
) -> None:
    """Draw test streets with the map that the served file gives, and with the true one."""
    from models.bev_segmenter.pictures import write_picture

    write_picture(repository, ops_library, path)
    typer.echo(path)


if __name__ == "__main__":
    app()
