"""What /predict takes for a model, and how it shows the outputs."""

from __future__ import annotations

from dataclasses import dataclass

PICTURES = ("image/jpeg", "image/png", "image/webp", "image/bmp", "image/gif")


@dataclass(frozen=True, slots=True)
class Presentation:
    """What /predict takes for a model, and how it shows the outputs.

    `count` is the output that holds the number of records; without it each row has as many as its outputs have entries.
    `fields` pairs each field of a record with its output. `text` is the output whose labels make one text, the field
    `text` of the only record, or a text for each row, if it has two dims.
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
