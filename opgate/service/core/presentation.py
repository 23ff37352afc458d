"""What /predict takes for a model, and how it shows the outputs."""

from __future__ import annotations

from dataclasses import dataclass

PICTURES = ("image/jpeg", "image/png", "image/webp", "image/bmp", "image/gif")


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text that a request has: the characters of an input between two places, which are outputs. Places are
    counted in code points."""

    input: str
    begin: str
    end: str


@dataclass(frozen=True, slots=True)
class Presentation:
    """What /predict takes for a model, and how it shows the outputs.

    `count` is the output that holds the number of records; without it each row has as many as its outputs have entries.
    `fields` pairs each field of a record with its output, `spans` with a part of an input. `text` is the output whose
    labels make one text, the field `text` of the only record, or a text for each row, if it has two dims.
    `masks` are the outputs with a mask of each record, which is shown as run lengths, with the place of the masks in
    the picture, and with the box that cuts each mask.
    `picture_model` is the model that runs if the client wants a picture. All are empty if the config has none.
    `media_types` are the kinds of file that the model takes, apart from application/octet-stream.
    """

    count: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    picture_model: str = ""
    media_types: tuple[str, ...] = PICTURES
    text: str = ""
    masks: tuple[str, ...] = ()
    spans: tuple[tuple[str, Span], ...] = ()

    @property
    def has_records(self) -> bool:
        """Whether an answer is a list of records, and not all outputs by name."""
        return bool(self.fields or self.spans or self.text)
