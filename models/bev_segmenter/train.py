"""Trains a network on streets, and measures it on streets that it has not seen."""

from __future__ import annotations

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
from models.training import fit, save


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

    def loss_of_batch() -> Tensor:
        pictures, occupied = tensors([streets[i] for i in rng.integers(len(streets), size=recipe.batch)])
        return nn.functional.binary_cross_entropy_with_logits(network(pictures), occupied, pos_weight=torch.tensor(2.0))

    title = f"train {recipe.view}"
    rate = recipe.learning_rate
    fit(network, loss_of_batch, title, steps=recipe.steps, learning_rate=rate, weight_decay=0.02, most_gradient=2.0)
    return save(network, folder / f"{recipe.view}-{recipe.seed}.pt")


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
