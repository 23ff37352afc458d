"""Trains a network on streets, and measures it on streets that it has not seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import track
from torch import Tensor, nn

from models.bev_segmenter.network import BevNetwork, View
from models.bev_segmenter.scenes import Scene, scene


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parameters of the training. `streets` different ones are drawn and seen again and again."""

    view: View = View.splat
    steps: int = 1000
    streets: int = 4000
    seed: int = 0
    batch: int = 16
    learning_rate: float = 4e-3
    threads: int = 1


def train(recipe: Recipe, folder: Path) -> Path:
    """Trains a network and saves its weights in `folder`. Returns the path."""
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(recipe.threads)
    rng = np.random.default_rng([recipe.seed, 1])
    streets = [scene(rng) for _ in track(range(recipe.streets), "draw streets")]
    network = BevNetwork(recipe.view).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=recipe.learning_rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, total_steps=recipe.steps)
    smooth = math.nan
    for step in track(range(1, recipe.steps + 1), f"train {recipe.view}"):
        pictures, occupied = tensors([streets[i] for i in rng.integers(len(streets), size=recipe.batch)])
        loss = nn.functional.binary_cross_entropy_with_logits(network(pictures), occupied, pos_weight=torch.tensor(2.0))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 2.0)
        optimizer.step()
        schedule.step()
        smooth = loss.item() if math.isnan(smooth) else 0.97 * smooth + 0.03 * loss.item()
        if step % 100 == 0:
            print(f"step {step}: loss {smooth:.4f}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{recipe.view}-{recipe.seed}.pt"
    torch.save(network.state_dict(), path)
    return path


def tensors(streets: Sequence[Scene]) -> tuple[Tensor, Tensor]:
    """Returns pictures f32 (b, 4, 3, 32, 80) of 0..1 and maps f32 (b, 32, 32)."""
    pictures = np.stack([street.pictures for street in streets]).transpose(0, 1, 4, 2, 3)
    occupied = np.stack([street.occupied for street in streets])
    return torch.from_numpy(pictures.astype(np.float32) / 255), torch.from_numpy(occupied.astype(np.float32))


def load(path: Path, view: View = View.splat) -> BevNetwork:
    """Returns a network with its trained weights, in evaluation mode."""
    network = BevNetwork(view)
    network.load_state_dict(torch.load(path, weights_only=True))
    return network.eval()


def iou_of(network: BevNetwork, streets: Sequence[Scene]) -> float:
    """Returns the intersection over union of the occupied cells of all streets."""
    found = []
    with torch.inference_mode():
        for first in range(0, len(streets), 50):
            found.append(network(tensors(streets[first : first + 50])[0]).numpy() > 0)
    return iou(np.concatenate(found), streets)


def iou(found: npt.NDArray[np.bool_], streets: Sequence[Scene]) -> float:
    truth = np.stack([street.occupied for street in streets])
    return float((found & truth).sum() / (found | truth).sum())
