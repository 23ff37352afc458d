"""Trains a network on rooms, and measures it on rooms that it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from models.pointcloud_segmenter.network import Context, network_of
from models.pointcloud_segmenter.scenes import LABELS, Scene, scene
from models.training import fit, save


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parameters of the training."""

    context: Context = Context.neighbours
    steps: int = 900
    seed: int = 0
    rooms: int = 6
    learning_rate: float = 4e-3
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Score:
    """The part of the points that are right, and the intersection over union of each class and on average."""

    accuracy: float
    mean_iou: float
    iou: tuple[float, ...]


def train(recipe: Recipe, folder: Path) -> Path:
    """Trains a network and saves its weights in `folder`. Returns the path."""
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(recipe.threads)
    rng = np.random.default_rng([recipe.seed, 1])
    network = network_of(recipe.context).train()

    def loss_of_batch() -> Tensor:
        rooms = [scene(rng, int(rng.integers(500, 1100))) for _ in range(recipe.rooms)]
        xyz, offset, labels = joined(rooms)
        return nn.functional.cross_entropy(network(xyz, offset), labels)

    title = f"train {recipe.context}"
    rate = recipe.learning_rate
    fit(network, loss_of_batch, title, steps=recipe.steps, learning_rate=rate, weight_decay=0.01, most_gradient=2.0)
    return save(network, folder / f"{recipe.context}-{recipe.seed}.pt")


def joined(rooms: Sequence[Scene]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the points of all rooms f32 (n, 3), the ends of the rooms i32 (b,) and the labels i64 (n,)."""
    offset = np.cumsum([len(room.xyz) for room in rooms]).astype(np.int32)
    xyz, labels = (np.concatenate([getattr(room, name) for room in rooms]) for name in ("xyz", "labels"))
    return torch.from_numpy(xyz), torch.from_numpy(offset), torch.from_numpy(labels)


def load(path: Path, context: Context = Context.neighbours) -> nn.Module:
    """Returns a network with its trained weights, in evaluation mode."""
    network = network_of(context)
    network.load_state_dict(torch.load(path, weights_only=True))
    return network.eval()


def found_by(network: nn.Module, rooms: Sequence[Scene]) -> list[np.ndarray]:
    """Returns the likeliest label of each point of each room, i64 (n,)."""
    with torch.inference_mode():
        return [network(*joined([room])[:2]).argmax(1).numpy() for room in rooms]


def score(rooms: Sequence[Scene], found: Sequence[np.ndarray]) -> Score:
    """Compares labels with the true ones."""
    truth, guess = np.concatenate([room.labels for room in rooms]), np.concatenate(found)
    counts = np.zeros((len(LABELS), len(LABELS)), np.int64)
    np.add.at(counts, (truth, guess), 1)
    right = np.diag(counts)
    iou = right / (counts.sum(0) + counts.sum(1) - right)
    return Score(float(right.sum() / counts.sum()), float(iou.mean()), tuple(iou.tolist()))
