"""`python -m models.digit_detector`: train, export, evaluate, and draw the example and the README's figure."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, help="The digit detector: training, export, evaluation.")

HERE = Path(__file__).parent
WEIGHTS = HERE / "build" / "weights.pt"

Repository = Annotated[Path, typer.Option(help="The model repository.")]


class Engine(StrEnum):
    """What runs the detector."""

    fused = "fused"
    reference = "reference"


@app.command()
def train(
    weights: Annotated[Path, typer.Option(help="Where the weights go.")] = WEIGHTS,
    steps: Annotated[int, typer.Option(help="Batches of 32 scenes.")] = 6500,
    seed: int = 0,
    threads: Annotated[int, typer.Option(help="For the same weights again, the same number of threads.")] = 1,
) -> None:
    """Train the network on scenes drawn from a seed."""
    from models.digit_detector.train import Recipe
    from models.digit_detector.train import train as train_network

    train_network(Recipe(steps=steps, seed=seed, threads=threads), weights)


@app.command()
def export(weights: Path = WEIGHTS, repository: Repository = Path("model_repository")) -> None:
    """Write the ONNX files of the digit models and of draw_detections."""
    from models.digit_detector.export import export_all

    for path in export_all(weights, repository):
        typer.echo(f"{path}  {path.stat().st_size:,} bytes")


@app.command()
def evaluate(
    repository: Repository = Path("model_repository"),
    engine: Annotated[Engine, typer.Option(help="The served file with the op library, or without it.")] = Engine.fused,
    ops_library: Path = Path("build/ops/libopgate_onnxruntime.so"),
    score_threshold: Annotated[float | None, typer.Option(help="Another than the served file's.")] = None,
) -> None:
    """Print the mean average precision on the 500 test scenes."""
    from models.digit_detector import evaluate as evaluation

    if engine is Engine.fused:
        detect = evaluation.fused_detector(repository, ops_library, score_threshold)
    else:
        detect = evaluation.reference_detector(repository, 0.25 if score_threshold is None else score_threshold)
    precision = evaluation.evaluate(detect)
    typer.echo(f"mAP@0.5       {precision.at_50:.4f}")
    typer.echo(f"mAP@0.5:0.95  {precision.at_50_95:.4f}")
    for label, value in enumerate(precision.of_class):
        typer.echo(f"AP@0.5 of {label}   {value:.4f}")


if __name__ == "__main__":
    app()
