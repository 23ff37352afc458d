"""Trains the network on words in noise, and measures it on the voices that it has not heard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from models.keyword_spotter import noise, words
from models.keyword_spotter.network import Front, KeywordNetwork
from models.training import fit, save


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parameters of the training."""

    front: Front = Front.mel
    steps: int = 2800
    seed: int = 0
    batch: int = 64
    learning_rate: float = 4e-3
    threads: int = 1


def train(recipe: Recipe, folder: Path) -> Path:
    """Trains the network and saves its weights in `folder`. Returns the path."""
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(recipe.threads)
    recordings = words.recordings(folder / "recordings", test=False)
    batches = noise.Batches(np.random.default_rng([recipe.seed, 1]), recordings)
    network = KeywordNetwork(recipe.front).train()

    def loss_of_batch() -> Tensor:
        clips = batches.draw(recipe.batch)
        logits = network(torch.from_numpy(clips.pcm))
        return nn.functional.cross_entropy(logits, torch.from_numpy(clips.labels), label_smoothing=0.05)

    title = f"train {recipe.front}"
    fit(network, loss_of_batch, title, steps=recipe.steps, learning_rate=recipe.learning_rate, weight_decay=0.01)
    return save(network, folder / f"{recipe.front}-{recipe.seed}.pt")


def load(path: Path, front: Front = Front.mel) -> KeywordNetwork:
    """Returns the network with its trained weights, in evaluation mode."""
    network = KeywordNetwork(front)
    network.load_state_dict(torch.load(path, weights_only=True))
    return network.eval()


def accuracy(network: KeywordNetwork, clips: noise.Clips) -> float:
    """Returns the part of the clips whose likeliest label is the right one."""
    with torch.inference_mode():
        parts = torch.from_numpy(clips.pcm).split(200)
        found = torch.cat([network(part).argmax(1) for part in parts]).numpy()
    return float(np.mean(found == clips.labels))
