"""Pictures: decoding, encoding, resizing, drawing, and a detector's boxes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.op_works import Array, Call, Inputs, Peer, Work, library_peer

SIZES = {"320": (320, 240), "1080p": (1920, 1080), "4000": (4000, 3000)}


def photograph(width: int, height: int) -> Array:
    """Returns a photograph from scikit-image."""
    from PIL import Image
    from skimage import data

    resized = Image.fromarray(data.rocket()).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(resized, np.uint8)


def encoded(pixels: Array, form: str) -> Array:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form, quality=90)
    return np.frombuffer(buffer.getvalue(), np.uint8)


def opencv(name: str, function: Callable[[object, Inputs], Call]) -> Peer:
    """Returns a peer that uses OpenCV on one thread. `function` gets the module and the inputs."""

    def make(inputs: Inputs) -> Call:
        import cv2

        cv2.setNumThreads(1)
        return function(cv2, inputs)

    return library_peer(name, "opencv-python-headless", make)


def simplejpeg_decode(inputs: Inputs) -> Call:
    import simplejpeg

    data = inputs["data"].tobytes()
    return lambda: simplejpeg.decode_jpeg(data)


def simplejpeg_encode(inputs: Inputs) -> Call:
    import simplejpeg

    image = inputs["image"]
    return lambda: simplejpeg.encode_jpeg(image, 90)


def planes(cv2: object, image: Array, width: int, height: int) -> Array:
    resized = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)  # type: ignore[attr-defined]
    return cv2.dnn.blobFromImage(resized, 1 / 255)  # type: ignore[attr-defined]


def works() -> Iterator[Work]:
    for size, (width, height) in SIZES.items():
        pixels = photograph(width, height)
        jpeg, png = encoded(pixels, "JPEG"), encoded(pixels, "PNG")
        yield Work(
            "DecodeImage", f"JPEG {size}", {"data": jpeg}, moved=0,
            peers=(
                opencv("cv2.imdecode", lambda cv2, i: lambda: cv2.imdecode(i["data"], cv2.IMREAD_COLOR)),
                library_peer("simplejpeg.decode_jpeg", "simplejpeg", simplejpeg_decode),
            ),
        )  # fmt: skip
        yield Work(
            "DecodeImage", f"PNG {size}", {"data": png}, moved=0,
            peers=(opencv("cv2.imdecode", lambda cv2, i: lambda: cv2.imdecode(i["data"], cv2.IMREAD_COLOR)),),
        )  # fmt: skip
        yield Work(
            "EncodeImage", f"JPEG {size}", {"image": pixels},
            (
                opencv("cv2.imencode", lambda cv2, i: lambda: cv2.imencode(".jpg", i["image"], [1, 90])),
                library_peer("simplejpeg.encode_jpeg", "simplejpeg", simplejpeg_encode),
            ),
        )  # fmt: skip
        yield Work(
            "EncodeImage", f"PNG {size}", {"image": pixels},
            (opencv("cv2.imencode", lambda cv2, i: lambda: cv2.imencode(".png", i["image"])),),
            {"format": "png"},
        )  # fmt: skip
        for side in (224, 640):
            to = {"height": side, "width": side}

            def resize(cv2: object, inputs: Inputs, side: int = side) -> Call:
                return lambda: planes(cv2, inputs["image"][0], side, side)

            def decode_and_resize(cv2: object, inputs: Inputs, side: int = side) -> Call:
                return lambda: planes(cv2, cv2.imdecode(inputs["data"], 1), side, side)  # type: ignore[attr-defined]

            yield Work(
                "ResizeNormalize", f"{size} to {side}", {"image": pixels[None]},
                (opencv("cv2.resize and blobFromImage", resize),), to, moved=0,
            )  # fmt: skip
            yield Work(
                "ImagePreprocess", f"JPEG {size} to {side}", {"data": jpeg, "ends": np.array([len(jpeg)], np.int32)},
                (opencv("cv2.imdecode, resize and blobFromImage", decode_and_resize),), to, moved=0,
            )  # fmt: skip
        rng = np.random.default_rng(0)
        corners = np.sort(rng.random((20, 2, 2)), axis=1).reshape(20, 4) * np.tile((width, height), 2)
        yield Work(
            "DrawBoundingBoxes", f"20 boxes, {size}",
            {
                "image": pixels,
                "boxes": corners.astype(np.float32),
                "scores": rng.random(20, np.float32),
                "labels": np.arange(20, dtype=np.int32) % 5,
            },
            (opencv("cv2.rectangle and putText", draw),),
            {"names": ["one", "two", "three", "four", "five"]},
        )  # fmt: skip


def draw(cv2: object, inputs: Inputs) -> Call:
    boxes = inputs["boxes"].astype(int).tolist()

    def call() -> Array:
        canvas = inputs["image"].copy()
        for left, top, right, bottom in boxes:
            cv2.rectangle(canvas, (left, top), (right, bottom), (0, 255, 0), 2)  # type: ignore[attr-defined]
            cv2.putText(canvas, "three 0.50", (left, top), 0, 0.5, (0, 255, 0), 1)  # type: ignore[attr-defined]
        return canvas

    return call
