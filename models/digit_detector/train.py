"""Trains the network: draws scenes as it needs them, uses AdamW with a cosine schedule, averages the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from models.digit_detector.dataset import PAD, SceneMaker, SceneRange
from models.digit_detector.loss import DetectionLoss, Truth
from models.digit_detector.network import DigitNetwork

_MOST_OBJECTS = 6


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parameters of the training.

    `size` is the side of a training canvas in pixels. Its digits are as large as those in a model input of 320 pixels.
    """

    steps: int
    seed: int = 0
    batch: int = 32
    size: int = 192
    learning_rate: float = 3e-3
    weight_decay: float = 0.03
    average: float = 0.998
    threads: int = 1


class Canvases(IterableDataset[tuple[Tensor, Truth]]):
    """Yields batches of letterboxed training scenes: image u8 (n, 3, size, size), and the objects in them."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def __iter__(self) -> Iterator[tuple[Tensor, Truth]]:
        recipe = self.recipe
        maker = SceneMaker(test=False)
        rng = np.random.default_rng([recipe.seed, 1])
        scene_range = SceneRange((recipe.size, recipe.size), (0.75, 1.0), (16 / recipe.size, 108 / recipe.size), (1, 6))
        for _ in range(recipe.steps):
            images = np.full((recipe.batch, recipe.size, recipe.size, 3), PAD, np.uint8)
            boxes = torch.zeros(recipe.batch, _MOST_OBJECTS, 4)
            labels = torch.zeros(recipe.batch, _MOST_OBJECTS, dtype=torch.int64)
            real = torch.zeros(recipe.batch, _MOST_OBJECTS, dtype=torch.bool)
            for row in range(recipe.batch):
                scene = maker.draw(rng, scene_range)
                h, w = scene.image.shape[:2]
                left, top, count = (recipe.size - w) // 2, (recipe.size - h) // 2, len(scene.labels)
                images[row, top : top + h, left : left + w] = scene.image
                boxes[row, :count] = torch.from_numpy(scene.boxes + np.array([left, top, left, top], np.float32))
                labels[row, :count] = torch.from_numpy(scene.labels)
                real[row, :count] = True
            yield torch.from_numpy(images).permute(0, 3, 1, 2), Truth(boxes, labels, real)


def train(recipe: Recipe, destination: Path, *, every: int = 500) -> None:
    """Trains the network and saves the averaged weights, at the end and after every `every` steps."""
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(recipe.threads)
    destination.parent.mkdir(parents=True, exist_ok=True)
    network = DigitNetwork().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    average = torch.optim.swa_utils.AveragedModel(
        network,
        multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(recipe.average),  # type: ignore[no-untyped-call]
        use_buffers=True,
    )
    loss_of = DetectionLoss(recipe.size)
    optimizer = torch.optim.AdamW(_parameter_groups(network, recipe.weight_decay), lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, recipe.steps))
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("train"), *columns, TextColumn("loss {task.fields[loss]:.3f}")) as progress:
        task = progress.add_task("train", total=recipe.steps, loss=math.nan)
        smooth = math.nan
        for step, (image, truth) in enumerate(DataLoader(Canvases(recipe), batch_size=None, num_workers=1), 1):
            pixels = (image.float() / 255).contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16):
                boxes, logits = network(pixels)
            loss: Tensor = loss_of(boxes, logits.float(), truth)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 10.0)
            optimizer.step()
            schedule.step()
            average.update_parameters(network)
            smooth = loss.item() if math.isnan(smooth) else 0.98 * smooth + 0.02 * loss.item()
            progress.update(task, advance=1, loss=smooth)
            if step % every == 0 or step == recipe.steps:
                progress.console.print(f"step {step}: loss {smooth:.4f}")
                torch.save(average.module.state_dict(), destination)


def _parameter_groups(network: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Returns the groups of parameters: the weights of convolutions decay, biases and normalization don't."""
    decayed = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def _rate(step: int, steps: int) -> float:
    """Returns the factor of the learning rate: a linear warm-up, then half a cosine down to a hundredth."""
    warm_up = min(300, steps // 10)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))
