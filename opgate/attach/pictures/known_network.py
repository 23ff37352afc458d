"""What is known of a network before nodes are put around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx

from opgate.attach.model import graph, labels, post
from opgate.attach.model.network_file import NetworkFile
from opgate.attach.model.outputs import Output
from opgate.attach.model.report import AttachError, Report
from opgate.attach.model.wish import Wish
from opgate.attach.pictures import blank, heads, pre, pre_words
from opgate.attach.pictures.facts import Network, read_network, sizes_in, with_sizes
from opgate.attach.pictures.trials import examples_in

#: What the user does if nothing tells the characters of a reader.
SAY_CHARACTERS = "Say ctc:FILE, with one character a line, or --labels, or another head"
#: How long a side that follows the picture is in a trial.
_TRIAL_SIDE = 320


@dataclass(frozen=True, slots=True)
class Known:
    """A network and what is known of it. `original` is the model in the file, `size` the height and width of the
    pictures that are tried, `outputs` are those that count, `labels` those that are stated, None without any. `before`
    is the pre-processing."""

    original: onnx.ModelProto
    network: Network
    size: tuple[int, int]
    said: post.Post
    outputs: Sequence[Output]
    labels: Sequence[str] | None
    before: pre_words.Pre

    @property
    def bytes(self) -> bool:
        """Whether the network takes 0..255."""
        return self.before.scale == "byte" and not self.before.std


def known(wish: Wish, file: NetworkFile, report: Report) -> Known:
    """Returns what the file, runs, defaults and the user say of a network. Raises AttachError, RunError and
    SessionError."""
    original, model = file.original, file.model
    network = read_network(wish.file, model, wish.input and graph.free_name(wish.input), report, wish.libraries)
    told = _size(network, wish.pre, report)
    size = told or _as_the_picture(network, wish, report)
    if network.sizes:
        original, model = (with_sizes(each, network.sizes, *size) for each in (original, model))
        network = replace(network, model=model)
    try:
        outputs = network.outputs(model, *size, bytes_=network.scales)
    except AttachError as error:
        raise AttachError(f"{error}. Is the size of --pre right?") from None
    said = _head(wish, network, outputs, size, report)
    if told is None and said.kind != "db":
        raise _open_size(network)
    chosen = post.chosen(outputs, said.only)
    option = "--labels" if wish.labels or not _characters(said) else "--post ctc:"
    # The labels of a text detector are the characters of its reader.
    own = "" if said.kind == "db" and wish.read else wish.labels or _characters(said)
    stated = labels.read(own, network.metadata, said.kind, report, option)
    if said.kind == "ctc" and stated is None:
        shown = ", ".join(map(str, chosen))
        raise AttachError(
            f"--post: {shown} is read as steps with a score for each character: which characters does it read? "
            f"{SAY_CHARACTERS}"
        )
    before = pre.settle(wish.pre, said.kind, network, size, report)
    known = Known(original, network, size, said, chosen, stated, before)
    if stated is None or said.kind != "ctc":
        return known
    pictures = examples_in(wish.examples)
    return replace(known, said=blank.settled(said, chosen, stated, network, size, known.bytes, pictures, report))


def _characters(said: post.Post) -> str:
    """Returns what stands behind ctc: in --post: a file of characters, or "metadata"."""
    return said.argument if said.kind == "ctc" else ""


def _size(network: Network, said: str, report: Report) -> tuple[int, int] | None:
    """Returns the height and width of the pictures that are tried, None if nothing tells them. `said` is --pre. Raises
    AttachError."""
    stated = pre_words.stated_size(said)
    if network.height is not None and network.width is not None:
        report.found("size", f"{network.height} x {network.width}", "the shape of the input")
        return network.height, network.width
    known = sizes_in(network.metadata.get("imgsz", ""))
    if stated:
        report.said("size", " x ".join(str(size) if size else "as the picture" for size in stated))
        height, width = stated[0] or _TRIAL_SIDE, stated[1] or network.width or _TRIAL_SIDE
    elif known:
        report.found("size", f"{known[0]} x {known[1]}", "metadata 'imgsz'")
        height, width = known
    elif network.height is not None:  # a line of text
        return network.height, _TRIAL_SIDE
    else:
        return None
    return network.height or height, network.width or width


def _as_the_picture(network: Network, wish: Wish, report: Report) -> tuple[int, int]:
    """Returns a size for the trial of a text detector, which takes pictures of any size. Raises AttachError for another
    network."""
    finds_text = post.kind_of(wish.post) == "db" if wish.post else wish.read or heads.finds_text(network)
    if not finds_text:
        raise _open_size(network)
    report.default("size", "as the picture")
    return network.height or _TRIAL_SIDE, network.width or _TRIAL_SIDE


def _open_size(network: Network) -> AttachError:
    paddle = heads.of_paddle(network) or "character" in network.metadata
    lines = ", height:48 for a reader of lines" + (" (height:32 before PP-OCRv3)" if paddle else "")
    return AttachError(
        f"--pre: the size of the input '{network.input}' is open: say it, such as letterbox:640 for a detector, "
        f"crop:224 for a classifier{lines}"
    )


def _head(wish: Wish, network: Network, outputs: Sequence[Output], size: tuple[int, int], report: Report) -> post.Post:
    """Returns the head: what --post says, else what the outputs tell. Raises AttachError."""
    shown = ", ".join(f"{output.name} {output.dtype}{list(output.shape)}" for output in outputs)
    report.ran("output", shown, f"of one random picture of {size[0]} x {size[1]}")
    if wish.post:
        if (kind := post.kind_of(wish.post)) not in post.PICTURES:
            raise AttachError(f"--post: {kind} means nothing to pictures: expected one of {', '.join(post.PICTURES)}")
        return post.read(wish.post, report.said, "", report)
    guesses = heads.recognise(network, outputs, size)
    if wish.read:  # that says that lines of text are found
        guesses = [guess for guess in guesses if guess.kind == "db"] or guesses
    if len(guesses) != 1 or not guesses[0].sure:
        raise heads.unknown(outputs, guesses)
    read = post.read(guesses[0].kind, report.ran if guesses[0].ran else report.found, guesses[0].why, report)
    return replace(read, argument="")  # nobody says how many labels
