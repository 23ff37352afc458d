"""The loop that trains the networks of the model repository."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor, nn


def fit(
    network: nn.Module,
    loss_of_batch: Callable[[], Tensor],
    title: str,
    *,
    steps: int,
    learning_rate: float,
    weight_decay: float,
    most_gradient: float = math.inf,
) -> None:
    """Trains a network with AdamW and one cycle of the learning rate.

    `loss_of_batch` draws a batch and returns its loss. A gradient whose norm is greater than `most_gradient` is scaled
    down. Prints the smoothed loss every hundred steps.
    """
    optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
    smooth = math.nan
    for step in track(range(1, steps + 1), title):
        loss = loss_of_batch()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if most_gradient < math.inf:
            nn.utils.clip_grad_norm_(network.parameters(), most_gradient)
        optimizer.step()
        schedule.step()
        smooth = loss.item() if math.isnan(smooth) else 0.97 * smooth + 0.03 * loss.item()
        if step % 100 == 0:
            print(f"step {step}: loss {smooth:.4f}", flush=True)


def save(network: nn.Module, path: Path) -> Path:
    """Writes the weights of a network, and returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), path)
    return path
