"""Trains the network on words in noise, and measures it on the voices that it has not heard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from torch import nn

from models.keyword_spotter import noise, words
from models.keyword_spotter.network import Front, KeywordNetwork


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
    optimizer = torch.optim.AdamW(network.parameters(), lr=recipe.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, total_steps=recipe.steps)
    for step in track(range(1, recipe.steps + 1), f"train {recipe.front}"):
        clips = batches.draw(recipe.batch)
        logits = network(torch.from_numpy(clips.pcm))
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(clips.labels), label_smoothing=0.05)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 250 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    path = folder / f"{recipe.front}-{recipe.seed}.pt"
    torch.save(network.state_dict(), path)
    return path


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
