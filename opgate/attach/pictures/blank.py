"""Finds out which class of a reader of lines is CTC's blank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from opgate.attach.model.outputs import Output
from opgate.attach.model.post import Post
from opgate.attach.model.report import AttachError, Report
from opgate.attach.pictures import trials
from opgate.attach.pictures.facts import Network
from opgate.attach.pictures.heads import of_paddle

#: How the blank is called in lists of characters.
_NAMES = ("", "blank", "<blank>", "[blank]", "<pad>", "[pad]")
#: Which share of the steps of pictures without text the blank has.
_MOST_STEPS = 0.5


def settled(
    said: Post,
    outputs: Sequence[Output],
    characters: Sequence[str],
    network: Network,
    size: tuple[int, int],
    bytes_: bool,
    examples: Sequence[Path],
    report: Report,
) -> Post:
    """Returns the head with the number of its blank: what --post says, the list of characters or the file tells, or a
    run shows. `size` is the height and width of the pictures that are tried, and `bytes_` says that they have 0..255.
    Raises AttachError if none of them tells it."""
    if "blank" in said.stated:
        report.said("blank", said.blank, "the class that is no character")
        return said
    steps = [output for output in outputs if len(output.shape) == 3]
    if len(steps) != 1:
        return said
    classes = steps[0].shape[2]
    whole = len(characters) == classes
    if not whole and len(characters) not in (classes - 1, classes - 2):
        return said  # an error about the number of characters follows
    named = [number for number, each in enumerate(characters) if each.lower() in _NAMES]
    if whole and len(named) == 1:
        report.found("blank", named[0], f"the characters have {characters[named[0]]!r} there")
        return replace(said, blank=named[0])
    if not whole and (of_paddle(network) or "character" in network.metadata):
        report.found("blank", 0, "the class before the characters, as PaddleOCR has it")
        return said
    winner, share = _most_steps(network, steps[0], size, bytes_, examples)
    wins = f"it wins {share:.0%} of the steps of plain pictures{' and of --examples' if examples else ''}"
    if not whole and winner == 0 and share > _MOST_STEPS:
        report.ran("blank", 0, f"the class before the characters: {wins}")
        return said
    first, last = "the first class, as PyTorch's loss has it", "the last class, as Keras has it"
    guesses = {winner: wins}
    for number, why in ((0, first), (classes - 1, last)):
        guesses[number] = f"{why}; {guesses[number]}" if number in guesses else why
    best = " or ".join(f"blank:{number} ({why})" for number, why in list(guesses.items())[:2])
    count = f"{len(characters)} characters for the {classes} classes of {steps[0]}"
    raise AttachError(f"--post: which class is the blank? There are {count}: say {best}")


def _most_steps(
    network: Network, output: Output, size: tuple[int, int], bytes_: bool, examples: Sequence[Path]
) -> tuple[int, float]:
    """Returns the class that wins the most steps of plain pictures and of examples, and its share of them."""
    wins = Counter[int]()
    opened = network.open(network.model)
    try:
        for picture in trials.plain_and_examples(network, size, bytes_, examples):
            (values,) = opened.run([output.name], {network.input: picture})
            wins.update(values.argmax(-1).ravel().tolist())
    except Exception as error:  # the classes of onnxruntime's exceptions share no other base
        raise AttachError(f"{network.path.name} fails on a plain picture: {error}") from None
    ((winner, count),) = wins.most_common(1)
    return winner, count / wins.total()
