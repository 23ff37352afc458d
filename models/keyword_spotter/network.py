"""The network: sound to bands of energy, and convolutions along time."""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor, nn

import opgate.torch
from models.keyword_spotter.words import LABELS, SAMPLE_RATE, SAMPLES

BANDS = 40
FRAME = 400
HOP = 160
TOP = 3


class Front(StrEnum):
    """What turns sound into bands: the op, or what stands in its place to see what the op is worth."""

    mel = "mel"
    """LogMelSpectrogram."""
    convolution = "convolution"
    """The logarithm of the energy of 40 learned filters on the same frames."""


class LogMel(nn.Module):
    """pcm f32 (n, t) -> f32 (n, 40, frames)."""

    def forward(self, pcm: Tensor) -> Tensor:
        mel: Tensor = opgate.torch.log_mel_spectrogram(
            pcm,
            sample_rate=SAMPLE_RATE,
            n_fft=FRAME,
            hop_length=HOP,
            n_mels=BANDS,
            f_min=60.0,
            f_max=7600.0,
            floor=1e-5,
        )
        return mel


class LogConvolution(nn.Module):
    """pcm f32 (n, t) -> f32 (n, 40, frames): a filter for each band on the frames of LogMel."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Conv1d(1, BANDS, FRAME, stride=HOP, padding=FRAME // 2, bias=False)

    def forward(self, pcm: Tensor) -> Tensor:
        return torch.log(self.filters(pcm[:, None]).square() + 1e-5)


class Residual(nn.Module):
    """Two convolutions along time, the first with a stride of two, and a shortcut."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv1d(channels, out, 9, stride=2, padding=4, bias=False), nn.BatchNorm1d(out), nn.ReLU(),
            nn.Conv1d(out, out, 9, padding=4, bias=False), nn.BatchNorm1d(out),
        )  # fmt: skip
        self.shortcut = nn.Sequential(nn.Conv1d(channels, out, 1, stride=2, bias=False), nn.BatchNorm1d(out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.branch(x) + self.shortcut(x))


class KeywordNetwork(nn.Module):
    """pcm f32 (n, 16000) -> logits f32 (n, 11)."""

    def __init__(self, front: Front = Front.mel) -> None:
        super().__init__()
        self.front: nn.Module = LogMel() if front is Front.mel else LogConvolution()
        self.norm = nn.BatchNorm1d(BANDS)
        self.body = nn.Sequential(
            nn.Conv1d(BANDS, 32, 3, padding=1, bias=False), nn.BatchNorm1d(32), nn.ReLU(),
            Residual(32, 40), Residual(40, 56), Residual(56, 72),
        )  # fmt: skip
        self.dropout = nn.Dropout(0.3)
        self.out = nn.Linear(72, len(LABELS))

    def forward(self, pcm: Tensor) -> Tensor:
        bands = self.front(pcm)
        # Without the mean, the loudness of a recording changes nothing.
        bands = self.norm(bands - bands.mean((1, 2), keepdim=True))
        logits: Tensor = self.out(self.dropout(self.body(bands).mean(2)))
        return logits


class KeywordSpotter(nn.Module):
    """The served model: WAV files to the three likeliest labels.

    data u8 (total,), ends i32 (n,) -> labels i32 (n, 3), scores f32 (n, 3), count i32 (n,), status i32 (n,).
    `count` is the number of labels with a score of 0.01 or more.
    """

    def __init__(self, network: KeywordNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, data: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        pcm, _, _, status = opgate.torch.decode_audio(data, ends, samples=SAMPLES, sample_rate=SAMPLE_RATE)
        scores, labels = torch.topk(torch.softmax(self.network(pcm), 1), TOP)
        count = (scores >= 0.01).sum(1, dtype=torch.int32)
        return labels.to(torch.int32), scores, count, status
