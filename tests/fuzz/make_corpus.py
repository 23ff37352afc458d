"""Makes the inputs that fuzzing of the native readers starts from: `python -m tests.fuzz.make_corpus` writes them to
corpus/.

What an input is stands at the top of native/fuzz_*.cpp. The pictures depend on the version of Pillow, so that they may
become others without a reason to replace the committed ones.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tritonclient.grpc import service_pb2

from opgate.ops_build.audio import sounds
from opgate.ops_build.images import bitmaps, pictures
from opgate.ops_build.ops.decode_points import cases as points

CORPUS = Path(__file__).parent / "corpus"
OPS = Path(__file__).parents[2] / "ops_build" / "ops"


def json_tensors() -> dict[str, bytes]:
    """Returns texts with tensors. The first byte: 1 for a body of /predict, 2 for small limits, 4 for nulls."""

    def body(data: str, more: str = "") -> bytes:
        return f'\0{{"inputs":[{{"name":"x","shape":[2],"datatype":"FP32","data":{data}}}{more}],"id":"q"}}'.encode()

    return {
        "numbers": body("[1, -2.5, 3e2, 0.1, 123456789012345678901, 4.9e-324, 1e999]"),
        "integers": body("[0, 1, 255, -128, 65535, 2147483647, 9223372036854775807, 18446744073709551615]"),
        "nested": body(json.dumps(np.arange(24).reshape(2, 3, 4).tolist())),
        "uneven": body("[[1, 2], [3]]"),
        "empty": body("[[], []]"),
        "single": body("7"),
        "booleans": body("[true, false, true]"),
        "words": body("[NaN, Infinity, -Infinity, null]"),
        "nulls": b"\4" + body("[null, 1.5]")[1:],
        "strings": body(r'["a", "", "\u00e9\ud83d\ude00 \\\"\n", "é"]'),
        "objects": body('[{"a": [1, {"b": "]"}]}]'),
        "several": body("[1]", ',{"data":[2],"parameters":{"data":3}},{"shape":[1]}'),
        "spaces": body(" [\n1 ,\t2\r]  "),
        "half_surrogate": body(r'["\ud83d"]'),
        "deep": b"\2" + body("[" * 6 + "]" * 6)[1:],
        "many": b"\2" + body("[1]", ',{"data":1}' * 4)[1:],
        "members": b'\1{"x": [1, 2], "text": "yes", "y": {"z": [3]}, "w": [[0.5], [1.5]]}',
        "broken": body("[1, 2")[:-20],
        "no_object": b"\0[1, 2]",
    }


def protobuf() -> dict[str, bytes]:
    """Returns messages. The first byte: 1 for a small envelope, 2 for few parts; the second is the room for numbers."""
    kinds = {
        "bool_contents": [True, False, True],
        "int_contents": [1, -2, 1 << 30],
        "int64_contents": [1 << 60, -1],
        "uint_contents": [7, 1 << 31],
        "uint64_contents": [1 << 63],
        "fp32_contents": [0.5, -1.5],
        "fp64_contents": [0.25, 1e300],
        "bytes_contents": [b"text", b""],
    }
    made = {}
    for name, values in kinds.items():
        message = service_pb2.ModelInferRequest(model_name="m", id="q")
        tensor = message.inputs.add(name="x", datatype="FP32", shape=[len(values)])
        getattr(tensor.contents, name).extend(values)
        made[name] = b"\0\2" + message.SerializeToString()
    raw = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[b"12345678", b"", b"90"])
    for name in "xyz":
        raw.inputs.add(name=name, datatype="UINT8", shape=[1])
    raw.parameters["sequence_id"].int64_param = 3
    raw.outputs.add(name="y").parameters["classification"].int64_param = 2
    encoded = raw.SerializeToString()
    # An input with a list of numbers that is not packed, and a field that nobody knows.
    unpacked = b"\x2a\x0e" + b"\x2a\x08" + b"\x10\x05" * 4 + b"\x0a\x02xy"
    return made | {
        "raw": b"\0\0" + encoded,
        "raw_few_parts": b"\2\0" + encoded,
        "raw_small_head": b"\1\0" + encoded,
        "unpacked": b"\0\3" + unpacked + b"\xa2\x06\x01z",
        "fixed": b"\0\1\x2a\x0b\x2a\x09\x35abcd\x32\x02ef",
        "cut": b"\0\0" + encoded[:-1],
        "long_varint": b"\0\0\x08" + b"\xff" * 10,
        "group": b"\0\0\x0b\x0c",
    }


def signatures() -> dict[str, bytes]:
    """Returns signatures: those that show the whole grammar, and some that are wrong."""
    return {
        "optional": b"KNNQuery(xyz: f32[n,3], offset: i32[b], new_xyz?: f32[m=n,3], new_offset?: i32[b]; nsample: int = 16)"
        b" -> (idx: i32[m,nsample], dist: f32[m,nsample])",
        "bounded": b"Voxelize(points: f32[n,c], size: const f32[3], range?: f32[6]) -> (features: f32[v<=n,c], counts: i32[v])",
        "variables": b"<T: f16|bf16|f32, U: i32|i64> RMSNorm(x: T[...,c], weight: T[c]; epsilon: float=0.00001)"
        b" -> (y: T[...,c], sum?: T[...,c], more??: U[c])",
        "variadic": b"Concat(x*: f32[n,k]; axis: int=-1) -> (y: f32[n,ceildiv(k*2+1, 3)%max(n,min(k,4))-1])",
        "attributes": b"Many(x: str[]; a: int[2]=[1,-2], b: float[]=[0.5,1e3], c: bool=true, d: str='te\\'xt', e: {RGB|BGR}=RGB,"
        b" f: str[]=['a','b'], g: bool[]=[]) -> (y: str[2+a])",
        "any": b"Flat(x: u8[*], n: const i64[]) -> (y: u8[n])",
        "huge": b"Op(x: f32[99999999999999999999]) -> (y: f32[1])",
        "deep": b"Op(x: f32[n]) -> (y: f32[" + b"(" * 40 + b"n" + b")" * 40 + b"])",
        "unbound": b"Op(x: f32[n]) -> (y: f32[m])",
        "cut": b"Op(x: f32[n",
    }


def files() -> dict[str, bytes]:
    """Returns files of every kind. The first byte: 1 for a row between two empty ones, 2, 4 and 6 for other filters."""
    made: dict[str, bytes] = {}
    for kind, make in (
        ("png", pictures.png_of_every_kind),
        ("jpeg", pictures.jpeg_of_every_kind),
        ("webp", pictures.webp_of_every_kind),
        ("bmp", bitmaps.bmp_of_every_kind),
        ("gif", bitmaps.gif_of_every_kind),
    ):
        for number, (_, content) in enumerate(make(11, 7)):
            made[f"{kind}_{number}"] = content
    made["webp_animated"] = pictures.animated_webp()
    for bits, kind in ((8, 1), (16, 1), (24, 1), (32, 1), (32, 3), (64, 3)):
        made[f"wav_{bits}_{kind}"] = sounds.wav(sounds.sound(30, bits, kind), bits=bits, kind=kind)
    made["wav_extensible"] = sounds.wav(
        sounds.sound(32, 16), channels=2, extensible=True, before=sounds.chunk(b"LIST", b"abc")
    )
    cloud = points.cloud(5)
    made |= {
        "npy_f4": points.npy(cloud.astype(np.float32)),
        "npy_f8": points.npy(cloud.astype(np.float64), (2, 0)),
        "npy_columns": points.npy(np.asfortranarray(cloud.astype(np.float32))),
        "ply_text": points.ply(cloud, text=True),
        "ply_float": points.ply(cloud),
        "ply_double": points.ply(cloud, kind="double", newline="\r\n"),
    }
    for number, kind in enumerate(sounds.ENCODED):
        made[f"sound_{number}"] = sounds.encoded(kind, sounds.tones(200, 1 + number % 2))
    return {name: bytes([number % 8]) + content for number, (name, content) in enumerate(made.items())}


#: What makes the inputs of each target.
MAKERS = {"json_tensors": json_tensors, "protobuf": protobuf, "signature": signatures, "files": files}


def main() -> None:
    """Writes the inputs. Those whose name begins with `found_` stay: fuzzing has found them."""
    for target, make in MAKERS.items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if not path.name.startswith("found_"):
                path.unlink()
        for name, content in make().items():
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
