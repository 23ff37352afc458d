"""What is sent over HTTP: heads, bodies of /infer, /generate and /predict, and what operators send."""

from __future__ import annotations

import base64
import gzip
import json
import math
import zlib
from typing import Any
from urllib.parse import quote

from google.protobuf import json_format
from hypothesis import strategies as st

from tests.fuzz import configs
from tests.fuzz.gateway import FILE_MODELS, MODELS, REGION, Fuzzed
from tests.fuzz.make_corpus import CORPUS
from tests.fuzz.strategies import EDITS, TEXTS, VALUES, changed, edited, rarely

# ---- Any bytes of HTTP/1 ----

PATHS = st.sampled_from([
    "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/double", "/v2/models/double/infer", "/predict/double",
    "/v2/models/double/versions/1/infer", "/v2/models/double/generate", "/v2/models/double/generate_stream", "/metrics",
    "/v2/models/none", "/v2/models/double/versions/99999999999999999999", "/v2/repository/index", "/", "/docs", "*", "//",
    "/v2/models/double/ready?x=1#y", "http://t/v2", "/v2/models/%2e%2e%2fx", "/v2/models/%00", "/v2/models/%ff/infer",
    "/v2/models/" + "x" * 5000, "/v2/../v2", "/v2/models/double%0d%0ax: y", "", "/é", "/v2/logging", "/v2/trace/setting",
])  # fmt: skip
NUMBERS = rarely(
    st.just("4"), st.sampled_from(["", "-1", "+4", "4, 4", "0x4", "4 ", "9" * 30, "1e2", "٤", "4\0", "1000001"])
)
HEADERS = st.one_of(
    st.tuples(st.just("Content-Length"), NUMBERS),
    st.tuples(st.just("Inference-Header-Content-Length"), NUMBERS),
    st.tuples(
        st.just("Transfer-Encoding"), st.sampled_from(["chunked", "gzip", "chunked, chunked", "identity", "\x0bchunked"])
    ),
    st.tuples(st.just("Content-Encoding"), st.sampled_from(["gzip", "deflate", "br", "identity", "gzip, gzip", ""])),
    st.tuples(st.just("Accept-Encoding"), st.sampled_from(["gzip", "deflate;q=0", "*", "gzip;q=x", "identity;q=0", ";;,"])),
    st.tuples(st.just("Accept"), st.sampled_from(["image/*", "text/html", "image/png;q=nan", ";;;", "*/*;q=-1", "image/jpeg"])),
    st.tuples(st.just("Content-Type"), st.sampled_from(["application/json", "multipart/form-data", "image/png", "", "x" * 99])),
    st.tuples(st.just("Connection"), st.sampled_from(["close", "keep-alive", "Upgrade", "close, keep-alive", "x"])),
    st.tuples(st.just("Upgrade"), st.sampled_from(["h2c", "websocket", ""])),
    st.tuples(st.just("Expect"), st.sampled_from(["100-continue", "200-maybe"])),
    st.tuples(st.just("Host"), st.sampled_from(["t", "", "a b", "[::1]:9", "x" * 300])),
    st.tuples(st.just("Origin"), st.just("http://evil")),
    st.tuples(st.sampled_from(["X-Request-Id", "traceparent", "triton-x", "X"]), TEXTS),
    st.tuples(st.just("X-Large"), st.sampled_from(["v" * 3000, "v" * 70000])),
    st.tuples(TEXTS, TEXTS),
)  # fmt: skip
TENSOR = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
BODIES = st.sampled_from([
    b"", b"{}", b"null", json.dumps({"inputs": [TENSOR]}).encode(), b"4\r\n{}  \r\n0\r\n\r\n", b"ffffffffff\r\n", b"0\r\n\r\n",
    b"2;x=y\r\n{}\r\n0\r\nTrailer: x\r\n\r\n", b"-1\r\n", gzip.compress(json.dumps({"inputs": [TENSOR]}).encode()),
    gzip.compress(bytes(2_000_000)), zlib.compress(b"{}"), b"\x1f\x8b\x08", b"--b\r\n\r\n--b--",
])  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Draws a request."""
    method = draw(
        rarely(st.sampled_from(["GET", "POST"]), st.sampled_from(["PUT", "OPTIONS", "DELETE", "x", "", "G T"]))
    )
    version = draw(
        rarely(st.just("HTTP/1.1"), st.sampled_from(["HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "http/1.1", ""]), 15)
    )
    headers = draw(st.lists(HEADERS, max_size=3))
    body = draw(BODIES)
    if draw(rarely(st.just(True), st.just(False), 9)):
        headers.insert(0, ("Content-Length", str(len(body))))
    end = draw(rarely(st.just("\r\n"), st.sampled_from(["\n", "\r", "\r\n ", "\0"]), 15))
    head = f"{method} {draw(PATHS)} {version}\r\nHost: t\r\n" + "".join(
        f"{name}: {text}{end}" for name, text in headers
    )
    return edited(head.encode("utf-8", "surrogatepass") + b"\r\n" + body, draw(rarely(st.just([]), EDITS, 9)))


#: Requests on one connection, and where the bytes are cut into pieces.
WIRE = st.tuples(st.lists(requests(), min_size=1, max_size=4).map(b"".join), st.lists(st.integers(0, 900), max_size=3))


def send(gateway: Fuzzed, example: tuple[bytes, list[int]]) -> None:
    """Sends bytes and checks what comes."""
    data, cuts = example
    for answer in gateway.send(data, tuple(sorted(min(cut, len(data)) for cut in cuts))):
        gateway.check(answer)


# ---- Tensors ----

KEYS = st.one_of(
    st.sampled_from([
        "binary_data_size", "binary_data", "binary_data_output", "classification", "shared_memory_region", "content_type",
        "shared_memory_offset", "shared_memory_byte_size", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout",
        "triton_enable_empty_final_response", "parameters", "name", "shape", "datatype", "data", "inputs", "outputs", "id",
    ]),
    TEXTS,
)  # fmt: skip
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
ELEMENTS = {
    "FP32": FLOATS, "BYTES": TEXTS, "BOOL": st.booleans(), "INT64": st.integers(-(2**63), 2**63 - 1)
}  # fmt: skip
SHAPES = {"plain": st.sampled_from([(1, 4), (2, 2), (0, 3)]), "ragged": st.just((1, 3))}
PARAMETERS = st.dictionaries(
    st.sampled_from(["classification", "binary_data", "priority", "timeout", "sequence_id", "binary_data_output"]),
    st.sampled_from([1, 2, True, False, 0, 10**7]),
    max_size=1,
)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, Any, bytes]:
    """Draws a model, a request in JSON that is right or almost, and binary tensors."""
    model = draw(st.sampled_from(MODELS))
    datatype = model.removeprefix("identity_") if model.startswith("identity_") else "FP32"
    shape = draw(SHAPES.get(model, st.sampled_from([(1, 4), (2, 4), (0, 4)])))
    count = math.prod(shape)
    tensor: dict[str, Any] = {"name": "x", "shape": list(shape), "datatype": datatype}
    binary = b""
    way = draw(st.sampled_from(["json", "json", "binary", "binary", "shared"]))
    if way == "shared":
        size = draw(st.sampled_from([16, 32, 4, 0, 4096, 4097]))
        tensor["parameters"] = {"shared_memory_region": REGION, "shared_memory_byte_size": size}
        if draw(st.booleans()):
            tensor["parameters"]["shared_memory_offset"] = draw(st.sampled_from([0, 16, 3, 4080, 5000]))
    elif way == "binary":
        size = {"FP32": 4, "BYTES": 5, "BOOL": 1, "INT64": 8}[datatype] * count
        binary = b"\1\0\0\0a" * count if datatype == "BYTES" else draw(st.sampled_from([bytes(size), b"\1" * size]))
        tensor["parameters"] = {"binary_data_size": size}
    else:
        data = draw(st.lists(ELEMENTS[datatype], min_size=count, max_size=count))
        tensor["data"] = [data[i : i + shape[-1]] for i in range(0, count, shape[-1])] if draw(st.booleans()) else data
    message: dict[str, Any] = {"inputs": [tensor]}
    if draw(st.booleans()):
        message["outputs"] = [{"name": "y", "parameters": draw(PARAMETERS)}]
        if draw(st.integers(0, 5)) == 5:
            size = draw(st.sampled_from([16, 32, 8, 4097]))
            message["outputs"][0]["parameters"] = {"shared_memory_region": REGION, "shared_memory_byte_size": size}
    if draw(st.booleans()):
        message |= {"id": draw(TEXTS), "parameters": draw(PARAMETERS)}
    return model, draw(changed(st.just(message), KEYS)), draw(rarely(st.just(binary), st.binary(max_size=20), 9))


INFER = st.tuples(
    bodies(),
    rarely(st.just("infer"), st.sampled_from(["generate", "generate_stream"])),
    rarely(st.just(0), st.one_of(st.none(), st.integers(-20, 20), st.sampled_from([10**6, 10**17, 10**30])), 9),
    rarely(st.just([]), EDITS, 9),
    rarely(st.none(), st.sampled_from(["gzip", "deflate"])),
)


def infer(gateway: Fuzzed, example: tuple[Any, ...]) -> None:
    """Sends a body with tensors, in JSON and in binary, packed or not."""
    (model, message, binary), route, shift, edits, encoding = example
    if route != "infer" and isinstance(message, dict):
        message = {"x": message.get("inputs"), **message}
    text = json.dumps(message).encode("utf-8", "surrogatepass")
    headers = {}
    if shift is not None and (binary or shift):
        headers["Inference-Header-Content-Length"] = str(len(text) + shift)
        text += binary
    body = edited(text, edits)
    if encoding:
        headers["Content-Encoding"] = headers["Accept-Encoding"] = encoding
        body = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
    gateway.check(gateway.post(f"/v2/models/{model}/{route}", body, headers))


# ---- /predict ----

FILES = sorted((CORPUS / "files").iterdir())
MEDIA = st.sampled_from([
    "application/octet-stream", "application/json", "image/png", "image/jpeg", "audio/wav", "application/x-npy", "model/ply",
    "multipart/form-data; boundary=b", "multipart/form-data", "text/plain", "", "image/", "multipart/form-data; boundary=" + "b" * 99,
    'multipart/form-data; boundary="', "application/json; charset=utf-16",
])  # fmt: skip


@st.composite
def forms(draw: st.DrawFn) -> bytes:
    """Draws a multipart form."""
    body = b""
    for _ in range(draw(st.integers(0, 3))):
        name = draw(rarely(st.sampled_from(["x", "data", "y"]), TEXTS)).encode("utf-8", "surrogatepass")
        file = draw(st.sampled_from([b"", b'; filename="f.png"', b"; filename*=utf-8''%ff", b'; filename="\\""']))
        more = draw(
            st.sampled_from(
                [b"", b"Content-Type: image/png\r\n", b"Content-Transfer-Encoding: base64\r\n", b"X: " + b"y" * 9000]
            )
        )
        content = draw(
            st.one_of(st.sampled_from([b"[1,2,3,4]", b"1", b"", b'"a"', b"[", b"\xff\xfe"]), st.binary(max_size=30))
        )
        body += b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n%b\r\n\r\n%b\r\n' % (
            name,
            file,
            more.strip(),
            content,
        )
    return body + b"--b--\r\n"


@st.composite
def predictions(draw: st.DrawFn) -> tuple[str, bytes, dict[str, str]]:
    """Draws a model, a body that it takes or almost, and the headers."""
    kind = draw(st.sampled_from(["file", "json", "form", "bytes"]))
    if kind == "file":
        model = draw(rarely(st.sampled_from(FILE_MODELS), st.sampled_from(MODELS), 15))
        body, media = draw(st.sampled_from(FILES)).read_bytes()[1:], "application/octet-stream"
    elif kind == "json":
        model = draw(rarely(st.sampled_from(MODELS), st.sampled_from(FILE_MODELS), 15))
        good = {"identity_BYTES": ["a", "", "b", "c"], "identity_BOOL": [True, False, True, False]}.get(
            model, [1, 2, 3, 4]
        )
        values = draw(
            changed(st.just({"data" if model in FILE_MODELS else "x": [good] if model == "plain" else good}), KEYS)
        )
        body, media = json.dumps(values).encode("utf-8", "surrogatepass"), "application/json"
    else:
        model = draw(st.sampled_from(MODELS + FILE_MODELS))
        body = draw(forms() if kind == "form" else st.binary(max_size=60))
        media = "multipart/form-data; boundary=b" if kind == "form" else "application/octet-stream"
    headers = {"Content-Type": draw(rarely(st.just(media), MEDIA, 9))}
    if draw(st.integers(0, 7)) == 7:
        headers["Accept"] = draw(st.sampled_from(["image/*", "image/jpeg", "*/*", "text/x"]))
    return model, edited(body, draw(rarely(EDITS, st.just([])))), headers


def predict(gateway: Fuzzed, example: tuple[str, bytes, dict[str, str]]) -> None:
    """Sends a file, a form or JSON to /predict."""
    model, body, headers = example
    gateway.check(gateway.post(f"/predict/{model}", body, headers))


# ---- What operators send ----

ROUTES = st.sampled_from([
    "/v2/repository/index", "/v2/repository/models/scratch/load", "/v2/repository/models/scratch/load",
    "/v2/repository/models/scratch/load", "/v2/repository/models/scratch/unload", "/v2/systemsharedmemory/region/region/register",
    "/v2/systemsharedmemory/region/region/unregister", "/v2/systemsharedmemory/unregister", "/v2/systemsharedmemory/status",
    "/v2/cudasharedmemory/region/region/register", "/v2/cudasharedmemory/unregister", "/v2/logging", "/v2/trace/setting",
    "/v2/models/double/trace/setting",
])  # fmt: skip
CONFIGS = configs.CONFIGS.map(lambda config: json_format.MessageToDict(config, preserving_proto_field_name=True))
LOADS = st.fixed_dictionaries(
    {},
    optional={
        "config": rarely(changed(CONFIGS, TEXTS).map(json.dumps), VALUES),
        "file:1/model.onnx": st.one_of(
            st.binary(max_size=40).map(lambda data: base64.b64encode(data).decode()), VALUES
        ),
        "unload_dependents": VALUES,
    },
)
SETTINGS = st.dictionaries(
    rarely(
        st.sampled_from([
            "ready", "key", "offset", "byte_size", "log_info", "log_verbose_level", "log_format", "log_file", "trace_level",
            "trace_rate", "trace_count", "trace_mode", "log_frequency", "raw_handle", "device_id", "trace_file",
        ]),
        TEXTS,
    ),
    rarely(st.sampled_from(["/none", "OFF", "TIMESTAMPS", "-1", "1", "default", ["OFF"], 0, 1, 4096, True, False]), VALUES),
    max_size=3,
)  # fmt: skip
CONTROL = st.tuples(
    ROUTES, st.one_of(st.fixed_dictionaries({"parameters": LOADS}), SETTINGS, VALUES), rarely(st.just([]), EDITS)
)


def control(gateway: Fuzzed, example: tuple[Any, ...]) -> None:
    """Sends a body to a route for operators."""
    path, body, edits = example
    text = edited(json.dumps(body).encode("utf-8", "surrogatepass"), edits)
    gateway.check(gateway.post(quote(path), text, method="GET" if path.endswith("status") else "POST"))
