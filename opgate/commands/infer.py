"""`opgate infer`: does what POST /predict does, from the command line. Needs no server, but --url can name one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        help="name=VALUE or name=@FILE, once for each input. VALUE is JSON without a batch dimension, or text. "
        "FILE is a .json or .npy file, or holds the bytes of a UINT8 or BYTES input.",
    ),
]
Image = Annotated[
    Path | None,
    typer.Option(
        "--file", "--image", help="A file, for a model that takes one: a picture, a sound, bytes of any kind."
    ),
]
OutputImage = Annotated[Path | None, typer.Option(help="Draw the answer on the picture and write it to this file.")]
Url = Annotated[str | None, typer.Option(help="URL of a running server, such as http://127.0.0.1:8000.")]
Repository = Annotated[Path | None, typer.Option(help="The folder of the models.", show_default="./model_repository")]
Version = Annotated[str, typer.Option(help="The model's version.", show_default="the highest")]


def infer(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    inputs: Inputs = None,
    image: Image = None,
    output_image: OutputImage = None,
    url: Url = None,
    model_repository: Repository = None,
    version: Version = "",
) -> None:
    """Run a model on one input and print labelled JSON."""
    from opgate.service.core.errors import ServingError

    try:
        values = dict(read_input(text) for text in inputs or [])
        if (image is None) == (not values):
            raise typer.BadParameter("give either --file or --input")
        payload: bytes | Mapping[str, bytes | str] = values if image is None else image.read_bytes()
        if url is not None:
            answer = _remote(url, model, version, payload, output_image is not None)
        else:
            answer = _local(model_repository, model, version, payload, output_image is not None)
        if output_image is not None:
            output_image.write_bytes(answer)
            typer.echo(f"wrote {output_image} ({len(answer)} bytes)", err=True)
        else:
            typer.echo(answer.decode())
    except (ServingError, OSError) as error:
        missing = f"{error.filename}: there is no such file" if isinstance(error, FileNotFoundError) else error
        typer.echo(f"opgate: {missing}", err=True)
        raise typer.Exit(1) from None


def read_input(text: str) -> tuple[str, bytes | str]:
    """Reads name=VALUE or name=@FILE. Returns the name, and JSON or text as str or the content of a file as bytes."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise typer.BadParameter(f"--input: expected name=VALUE or name=@FILE, got '{text}'")
    return (name, _read_file(Path(value[1:]))) if value.startswith("@") else (name, value)


def _read_file(path: Path) -> bytes | str:
    import json

    import numpy as np

    if path.suffix == ".npy":
        return json.dumps(np.load(path, allow_pickle=False).tolist())
    if path.suffix != ".json":
        return path.read_bytes()
    text = path.read_text(encoding="utf-8")
    try:
        json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{path} is not valid JSON: {error}") from None
    return text


def _indented(answer: bytes) -> bytes:
    import json

    return json.dumps(json.loads(answer), indent=2, ensure_ascii=False).encode()


def _local(
    repository: Path | None, name: str, version: str, payload: bytes | Mapping[str, bytes | str], picture: bool
) -> bytes:
    """Loads the model and the models that it needs, and runs it in this process."""
    import asyncio

    from opgate.service.core.errors import Kind, ServingError
    from opgate.service.gateway import Gateway
    from opgate.service.settings import Settings
    from opgate.service.telemetry import logs
    from opgate.service.wire.friendly import file_request, labelled, picture_bytes, values_request

    logs.configure("critical", "text")
    settings = Settings() if repository is None else Settings(model_repository=repository)
    gateway = Gateway(settings)
    gateway.catalog.load_all(only=name)
    model = gateway.find(name, version).model
    if picture:
        if not model.presentation.picture_model:
            raise ServingError(Kind.NOT_ACCEPTABLE, f"model '{name}' answers with JSON, it makes no picture")
        model = gateway.find(model.presentation.picture_model).model
    make = file_request if isinstance(payload, bytes) else values_request
    request = make(model.spec, payload, gateway.limits)  # type: ignore[arg-type]
    result = asyncio.run(gateway.infer(model, request))
    if picture:
        return picture_bytes(model.spec, result)[0]
    return _indented(labelled(model.spec, model.presentation, result, request.inputs))


def _remote(url: str, name: str, version: str, payload: bytes | Mapping[str, bytes | str], picture: bool) -> bytes:
    """Sends POST /predict to a running server and returns its answer."""
    import urllib.error
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"--url: expected http://HOST:PORT, got '{url}'")
    body, media = _body(payload)
    path = f"{url.rstrip('/')}/predict/{quote(name)}" + (f"/versions/{quote(version)}" if version else "")
    headers = {"Content-Type": media, "Accept": "image/*" if picture else "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(path, body, headers)) as response:
            data: bytes = response.read()
    except urllib.error.HTTPError as error:
        raise OSError(f"{path} answered {error.code}: {error.read().decode('utf-8', 'replace')}") from None
    except urllib.error.URLError as error:
        raise OSError(f"no answer from {url} ({error.reason}): is opgate serve running there?") from None
    return data if picture else _indented(data)


def _body(payload: bytes | Mapping[str, bytes | str]) -> tuple[bytes, str]:
    """Returns the body and its media type: a picture as it is, values as a form."""
    import secrets

    if isinstance(payload, bytes):
        return payload, "application/octet-stream"
    boundary = secrets.token_hex(16)
    parts = []
    for name, value in payload.items():
        is_file = isinstance(value, bytes)
        file = '; filename="data"\r\nContent-Type: application/octet-stream' if is_file else ""
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode()
        parts.append(head + (value if isinstance(value, bytes) else value.encode()) + b"\r\n")
    return b"".join(parts) + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"
