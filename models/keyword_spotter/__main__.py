"""`python -m models.keyword_spotter`: train, export, evaluate, and write the example clips and the README's picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from models.commands import OPS_LIBRARY, REPOSITORY, OpsLibrary, Repository, new_app, say_exported
from models.keyword_spotter.network import Front

app = new_app("keyword spotter")

HERE = Path(__file__).parent
BUILD = HERE / "build"

Seed = Annotated[int, typer.Option(help="Seed of the weights and of the noise.")]


@app.command()
def train(front: Front = Front.mel, steps: int = 2800, seed: Seed = 0, threads: int = 1) -> None:
    """Train the network. The first training makes the recordings, which needs espeak-ng."""
    from models.keyword_spotter.train import Recipe
    from models.keyword_spotter.train import train as train_network

    typer.echo(train_network(Recipe(front=front, steps=steps, seed=seed, threads=threads), BUILD))


@app.command()
def evaluate(front: Front = Front.mel, seed: Seed = 0) -> None:
    """Print the accuracy on the voices that are not in the training data."""
    from models.keyword_spotter.noise import held_out_clips
    from models.keyword_spotter.train import accuracy, load
    from models.keyword_spotter.words import recordings

    network, spoken = load(BUILD / f"{front}-{seed}.pt", front), recordings(BUILD / "recordings", test=True)
    for decibels in (20, 10, 5, 0):
        clips = held_out_clips(spoken, decibels)
        typer.echo(f"{front} at {decibels:2d} dB: {accuracy(network, clips):.4f} of {len(clips.labels)} clips")


@app.command()
def export(repository: Repository = REPOSITORY, seed: Seed = 0) -> None:
    """Write keyword_spotter/1/model.onnx to the model repository."""
    from models.keyword_spotter.export import export as export_model

    say_exported(export_model(BUILD / f"{Front.mel}-{seed}.pt", repository))


@app.command()
def examples(folder: Path = Path("docs/examples/keywords")) -> None:
    """Write twelve clips of unheard voices at 10 dB as WAV files, which are named by their words."""
    from models.keyword_spotter.pictures import write_examples

    for path in write_examples(BUILD / "recordings", folder):
        typer.echo(path)


@app.command()
def picture(
    path: Path = HERE / "keywords.png",
    repository: Repository = REPOSITORY,
    ops_library: OpsLibrary = OPS_LIBRARY,
    clips: Annotated[Path, typer.Option(help="Folder with WAV files.")] = Path("docs/examples/keywords"),
) -> None:
    """Draw clips as the network sees them, with what the served file hears."""
    from models.keyword_spotter.pictures import write_picture

    write_picture(repository, ops_library, clips, path)
    typer.echo(path)


if __name__ == "__main__":
    app()
