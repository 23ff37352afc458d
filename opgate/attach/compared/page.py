"""A page of pictures on which two answers disagree, side by side."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass

from opgate.attach.compared.answers import Told

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font-family: system-ui, sans-serif; margin: 2em; }} pre {{ background: #f4f4f4; padding: 1em; }}
.pair {{ display: flex; gap: 1em; margin: 1em 0; }} figure {{ margin: 0; }} img {{ max-width: 45vw; max-height: 70vh; }}
</style></head><body><h1>{title}</h1><pre>{summary}</pre>
"""
_LONGEST = 800


@dataclass(frozen=True, slots=True)
class Case:
    """A picture that two answers disagree about: its name, its bytes, both answers."""

    name: str
    picture: bytes
    ours: Told
    theirs: Told


def page(title: str, summary: Sequence[str], cases: Sequence[Case]) -> str:
    """Returns a page: what the comparison found, and each picture twice with the two answers drawn on it."""
    parts = [_HEAD.format(title=html.escape(title), summary=html.escape("\n".join(summary)))]
    if not cases:
        parts.append("<p>No picture on which the answers disagree.</p>")
    for case in cases:
        parts.append(f'<h2>{html.escape(case.name)}</h2><div class="pair">')
        for told, whose in ((case.ours, "the served model"), (case.theirs, "your function")):
            data = base64.b64encode(_drawn(case.picture, told)).decode()
            caption = html.escape(f"{whose}: {_words(told)}")
            parts.append(
                f'<figure><img src="data:image/jpeg;base64,{data}" alt=""><figcaption>{caption}</figcaption></figure>'
            )
        parts.append("</div>")
    return "".join(parts) + "</body></html>\n"


def _words(told: Told) -> str:
    shown = [f"{thing.label} {thing.score:.3f}" if thing.score is not None else thing.label for thing in told.things]
    return ", ".join(shown[:10]) or ("a vector" if told.vector else "nothing")


def _drawn(picture: bytes, told: Told) -> bytes:
    """Returns a JPEG of the picture with the boxes of an answer."""
    from PIL import Image, ImageDraw, ImageOps, UnidentifiedImageError

    try:
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(picture))).convert("RGB")
    except (UnidentifiedImageError, OSError):
        image = Image.new("RGB", (320, 240), (200, 200, 200))
    scale = min(1.0, _LONGEST / max(image.size))
    image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    draw = ImageDraw.Draw(image)
    for thing in told.things:
        if thing.box:
            x1, y1, x2, y2 = (side * scale for side in thing.box)
            corners = (min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
            draw.rectangle(corners, outline=(220, 30, 30), width=2)
            draw.text((corners[0] + 3, corners[1] + 2), thing.label, fill=(220, 30, 30))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue()
