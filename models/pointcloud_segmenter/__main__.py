"""`python -m models.pointcloud_segmenter`: train, export, evaluate, and make the example and the README's picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from models.commands import OPS_LIBRARY, REPOSITORY, OpsLibrary, Repository, new_app, say_exported
from models.pointcloud_segmenter.network import Context

app = new_app("point cloud segmenter")

HERE = Path(__file__).parent
BUILD = HERE / "build"

Seed = Annotated[int, typer.Option(help="Seed of the weights and of the rooms.")]


@app.command()
def train(context: Context = Context.neighbours, steps: int = 900, seed: Seed = 0, threads: int = 1) -> None:
    """Train a network."""
    from models.pointcloud_segmenter.train import Recipe
    from models.pointcloud_segmenter.train import train as train_network

    typer.echo(train_network(Recipe(context=context, steps=steps, seed=seed, threads=threads), BUILD))


@app.command()
def evaluate(context: Context = Context.neighbours, seed: Seed = 0, rooms: int = 200) -> None:
    """Print how well a network labels the points of rooms that are not in the training data."""
    from models.pointcloud_segmenter.scenes import LABELS, held_out_scenes
    from models.pointcloud_segmenter.train import found_by, load, score

    scenes = held_out_scenes(rooms)
    result = score(scenes, found_by(load(BUILD / f"{context}-{seed}.pt", context), scenes))
    typer.echo(f"{context}: mean IoU {result.mean_iou:.4f}, accuracy {result.accuracy:.4f} in {rooms} rooms")
    typer.echo("  ".join(f"{label} {iou:.3f}" for label, iou in zip(LABELS, result.iou, strict=True)))


@app.command()
def export(repository: Repository = REPOSITORY, seed: Seed = 0) -> None:
    """Write pointcloud_segmenter/1/model.onnx to the model repository."""
    from models.pointcloud_segmenter.export import export as export_model

    say_exported(export_model(BUILD / f"{Context.neighbours}-{seed}.pt", repository))


@app.command()
def examples(folder: Path = Path("docs/examples")) -> None:
    """Write the first test room as room.ply, and its true labels as room_labels.txt."""
    from models.pointcloud_segmenter.pictures import write_examples

    for path in write_examples(folder):
        typer.echo(path)


@app.command()
def picture(
    path: Path = HERE / "rooms.png",
    repository: Repository = REPOSITORY,
    ops_library: OpsLibrary = OPS_LIBRARY,
) -> None:
    """Draw test rooms with the labels that the served file gives, and with the true ones."""
    from models.pointcloud_segmenter.pictures import write_picture

    write_picture(repository, ops_library, path)
    typer.echo(path)


if __name__ == "__main__":
    app()
