"""`python -m models.digit_detector`: train, export, evaluate, and draw the example picture and the README's figure."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from models.commands import OPS_LIBRARY, REPOSITORY, OpsLibrary, Repository, new_app

if TYPE_CHECKING:
    from models.digit_detector.evaluate import Detector

app = new_app("digit detector")

HERE = Path(__file__).parent
WEIGHTS = HERE / "build" / "weights.pt"


class Engine(StrEnum):
    """How to run the detector: `fused` runs the served file with the op library, `reference` the network and NumPy."""

    fused = "fused"
    reference = "reference"


ScoreThreshold = Annotated[float | None, typer.Option(help="Score threshold. Default: that of the served file.")]


@app.command()
def train(
    weights: Annotated[Path, typer.Option(help="File to write the weights to.")] = WEIGHTS,
    steps: Annotated[int, typer.Option(help="Number of batches of 32 scenes.")] = 6500,
    seed: int = 0,
    threads: Annotated[
        int, typer.Option(help="Number of threads. Only the same number gives the same weights again.")
    ] = 1,
) -> None:
    """Train the network on random scenes."""
    from models.digit_detector.train import Recipe
    from models.digit_detector.train import train as train_network

    train_network(Recipe(steps=steps, seed=seed, threads=threads), weights)


@app.command()
def export(weights: Path = WEIGHTS, repository: Repository = REPOSITORY) -> None:
    """Write the ONNX files of the digit models and of draw_detections."""
    from models.digit_detector.export import export_all

    for path in export_all(weights, repository):
        typer.echo(f"{path}  {path.stat().st_size:,} bytes")


@app.command()
def evaluate(
    repository: Repository = REPOSITORY,
    engine: Engine = Engine.fused,
    ops_library: OpsLibrary = OPS_LIBRARY,
    score_threshold: ScoreThreshold = None,
) -> None:
    """Print the mean average precision on the 500 test scenes."""
    from models.digit_detector.evaluate import evaluate as evaluate_detector

    precision = evaluate_detector(_detector(repository, engine, ops_library, score_threshold))
    typer.echo(f"mAP@0.5       {precision.at_50:.4f}")
    typer.echo(f"mAP@0.5:0.95  {precision.at_50_95:.4f}")
    for label, value in enumerate(precision.of_class):
        typer.echo(f"AP@0.5 of {label}   {value:.4f}")


@app.command()
def example(folder: Path = Path("docs/examples")) -> None:
    """Write the example picture digits.jpg, and digits.json with its boxes and labels."""
    from models.digit_detector.pictures import write_example

    for path in write_example(folder):
        typer.echo(path)


@app.command()
def figure(
    path: Path = HERE / "detections.png",
    repository: Repository = REPOSITORY,
    engine: Engine = Engine.fused,
    ops_library: OpsLibrary = OPS_LIBRARY,
    score_threshold: ScoreThreshold = None,
) -> None:
    """Write the README's figure: six test scenes with the boxes that the detector finds."""
    from models.digit_detector.pictures import write_figure

    write_figure(_detector(repository, engine, ops_library, score_threshold), path)
    typer.echo(path)


def _detector(repository: Path, engine: Engine, ops_library: Path, score_threshold: float | None) -> Detector:
    from models.digit_detector.evaluate import fused_detector, reference_detector

    if engine is Engine.fused:
        return fused_detector(repository, ops_library, score_threshold)
    return reference_detector(repository, 0.25 if score_threshold is None else score_threshold)


if __name__ == "__main__":
    app()
