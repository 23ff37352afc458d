"""Attaches pre- and post-processing to a network: finds out what a request has, and makes the model for it."""

from __future__ import annotations

from typing import Protocol

from opgate.attach import any_file, tables
from opgate.attach.model import network_file
from opgate.attach.model.attached import Attached, with_own_names
from opgate.attach.model.network_file import NetworkFile
from opgate.attach.model.report import AttachError, Report, did_you_mean
from opgate.attach.model.wish import Wish
from opgate.attach.pictures import attach_pictures as pictures
from opgate.attach.sounds import attach_sounds as sounds
from opgate.attach.texts import attach_texts as texts


class _Kind(Protocol):
    """What a request may have beside pictures."""

    def wanted(self, wish: Wish, network: NetworkFile) -> bool: ...

    def attach(self, wish: Wish, name: str, network: NetworkFile, report: Report) -> Attached: ...


#: The words that say that a request has something else than pictures.
_FIRST = ("pcm", "log-mel", "fbank", "mfcc", "head", "tail", "columns")
_OTHERS: tuple[_Kind, ...] = (sounds, texts, any_file, tables)


def attach(wish: Wish, name: str) -> Attached:
    """Makes the model `name`. Raises AttachError, RunError and SessionError."""
    network = network_file.load(wish)
    for kind in _OTHERS:
        if kind.wanted(wish, network):
            for option, said in (("--draw", wish.draw), ("--read", wish.read)):
                if said:
                    raise AttachError(f"{option} goes with pictures, and this network takes something else")
            return with_own_names(kind.attach(wish, name, network, Report()))
    first = (wish.pre.split() or [""])[0]
    if first and not any(len(each.shape) == 4 for each in network.inputs.values()):
        near = did_you_mean(first, ("columns", "tokenizer.json", "vocab.txt"), _FIRST)
        raise AttachError(
            f"--pre: what is '{first}'?{near} {wish.file.name} takes no picture: its inputs are {network.described}. "
            f"Expected words that begin with a tokenizer.json or vocab.txt, {', '.join(f'{word}:' for word in _FIRST)} "
            "or columns"
        )
    return pictures.attach(wish, name, network, Report())
