"""POST /predict/<model>: takes a file, a form or plain JSON, and answers with labelled JSON or a picture."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import orjson
from fastapi import Request, Response
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from opgate.service.api.asgi_exchange import AsgiExchange, found, model_and_version, unless_left
from opgate.service.api.kserve_http import JSON, read_body
from opgate.service.api.openapi import predict_operation
from opgate.service.api.routes import Route, of_models
from opgate.service.core.errors import Kind, ServingError, detached, invalid, too_large
from opgate.service.core.request import Request as InferRequest
from opgate.service.core.spec import ModelSpec
from opgate.service.core.tensors import SMALL
from opgate.service.gateway import LONG_COST, Gateway, Reading
from opgate.service.repository.loader import LoadedModel
from opgate.service.settings import smallest
from opgate.service.wire.friendly import (
    Value,
    csv_rows,
    file_input,
    file_request,
    json_rows,
    labelled,
    of_file,
    picture_bytes,
    rows_of,
    values_request,
    with_query,
)
from opgate.service.wire.json_tensors import members

#: How many files of a request are under way at once: more than a batch has, so that batches are full.
_AT_ONCE = 32
CSV = "text/csv"
#: White space before the array of a JSON body is looked for in so many bytes.
_BEGINNING = 64
#: A file, or values by input name, where a list is given for several rows, or the values of each row.
Content = bytes | Mapping[str, Value | list[Value]] | Sequence[Mapping[str, Value]]


def routes(gateway: Gateway) -> Iterator[Route]:
    """Yields the routes of one gateway."""

    async def predict(request: Request) -> Response:
        with contextlib.ExitStack() as stack:
            return await answer(request, stack)

    async def answer(request: Request, stack: contextlib.ExitStack) -> Response:
        name, version = model_and_version(request)
        with Reading(await found(gateway, request)) as served:
            wants = wanted_media(request.headers.get("accept", "*/*"))
            picture_model = _picture_model(served.model) if wants else ""
            payload = await _payload(gateway, request, served.model)
            stack.enter_context(gateway.holding(payload.most))
            spec = served.model.spec
            query = request.query_params.multi_items()

            def read() -> tuple[Content, Sequence[Mapping[str, Value]] | None]:
                return _rows(payload.content(), spec, query, gateway)

            content, rows = await gateway.work(payload.size, read)
            if rows is not None and wants:
                raise ServingError(Kind.NOT_ACCEPTABLE, f"{len(rows)} files are answered with JSON, not with a picture")
        if rows is not None:
            return await _several(gateway, request, (name, version), rows, stack)
        if wants:
            name, version = picture_model, ""
        served = await found(gateway, request, (name, version))
        model = served.model

        def decode() -> InferRequest:
            return _request(gateway, model.spec, content)

        if wants:
            pictures = AsgiExchange(gateway, request, lambda _: 0, lambda asked: _picture(model, asked, wants))
            return await pictures.run(served, payload.size, decode)
        texts = AsgiExchange(gateway, request, lambda asked: _cost(model, asked), lambda asked: _labelled(model, asked))
        return Response(await texts.run(served, payload.size, decode), media_type=JSON)

    yield from of_models("POST", "", predict, "inference", predict_operation, of="/predict")


def _rows(
    content: Content, spec: ModelSpec, query: Sequence[tuple[str, str]], gateway: Gateway
) -> tuple[Content, Sequence[Mapping[str, Value]] | None]:
    """Returns the content of a body with the values in the query of its URL, and its rows, None if it has one."""
    if isinstance(content, bytes):
        return (with_query(spec, of_file(spec, content), query), None) if query else (content, None)
    if isinstance(content, Mapping):
        values = with_query(spec, content, query) if query else content
        return values, rows_of(spec, values, gateway.limits)
    rows = [cast("dict[str, Value]", with_query(spec, row, query)) if query else row for row in content]
    return rows, rows


class _Part(AsgiExchange[bytes]):
    """One of several files of a request. Its answer is kept until all are there."""

    __slots__ = ("_held",)

    def __init__(self, gateway: Gateway, http: Request, model: LoadedModel, held: contextlib.ExitStack) -> None:
        super().__init__(gateway, http, lambda asked: _cost(model, asked), lambda asked: _labelled(model, asked))
        self._held = held

    def note(self, request: InferRequest) -> None:
        """Tells the journal nothing: it has one line for all parts."""

    def hold(self, size: int) -> bool:
        """Counts the bytes of the answer until all parts are answered."""
        self._held.callback(self.gateway.budget.let_go, size)
        return self.gateway.budget.hold(size, size <= SMALL)


async def _several(
    gateway: Gateway,
    request: Request,
    model: tuple[str, str],
    rows: Sequence[Mapping[str, Value]],
    stack: contextlib.ExitStack,
) -> Response:
    """Answers several files, each as if it were alone: with its answer or its error. `model` is a name and a version.

    Raises ServingError if the gateway or the model can't answer any of them.
    """
    at_once = asyncio.Semaphore(_AT_ONCE)
    shared = sum(value.nbytes for value in (rows[0].values() if rows else ()) if isinstance(value, np.ndarray))
    stack.enter_context(gateway.holding(shared * min(len(rows), _AT_ONCE)))
    errors: list[ServingError] = []

    async def answer(values: Mapping[str, Value]) -> bytes:
        async with at_once:
            try:
                served = await found(gateway, request, model)
                spec = served.model.spec
                part = _Part(gateway, request, served.model, stack)
                size = sum(len(value) for value in values.values() if isinstance(value, (bytes, str)))
                try:
                    await part.submit(served, size, lambda: values_request(spec, values, gateway.limits))
                    return await part.answer()
                finally:
                    part.cancel()
            except ServingError as error:
                errors.append(error)
                return orjson.dumps({"error": error.message})

    async def answers() -> list[bytes]:
        return await asyncio.gather(*(answer(values) for values in rows))

    body = b'{"results":[' + b",".join(await unless_left(request, answers())) + b"]}"
    if rows and len(errors) == len(rows) and errors[0].kind is not Kind.INVALID:
        raise detached(errors[0])
    counted = request.scope.get("opgate.counted")
    if counted is not None and not counted.hold_answer(len(body)):
        raise gateway.no_room(len(body))
    return Response(body, media_type=JSON)


@dataclass(frozen=True, slots=True)
class _Payload:
    """A body: what returns a file or the values by input name, the most bytes that it has, and the most bytes that
    it becomes when it is unpacked, 0 if it is not packed."""

    content: Callable[[], Content]
    size: int
    most: int = 0


def _request(gateway: Gateway, spec: ModelSpec, content: Content) -> InferRequest:
    if isinstance(content, bytes):
        return file_request(spec, content, gateway.limits)
    assert isinstance(content, Mapping)  # a body of several rows is answered row by row
    once = {name: value for name, value in content.items() if not isinstance(value, list)}
    return values_request(spec, once, gateway.limits)


def _picture_model(model: LoadedModel) -> str:
    """Returns the name of the model that answers with a picture in place of this model.

    Raises ServingError (NOT_ACCEPTABLE) if there is none.
    """
    name = model.presentation.picture_model
    if not name:
        raise ServingError(Kind.NOT_ACCEPTABLE, f"model '{model.spec.name}' answers with JSON, it makes no picture")
    return name


def _picture(model: LoadedModel, request: InferRequest, wants: set[str]) -> tuple[Response, int]:
    """Returns the answer to a request as a picture, and its bytes. Raises ServingError (NOT_ACCEPTABLE)."""
    data, media = picture_bytes(model.spec, request.result or {})
    if not wants & {media, "image/*"}:
        text = f"model '{model.spec.name}' answers with {media}, not {', '.join(sorted(wants))}"
        raise ServingError(Kind.NOT_ACCEPTABLE, text)
    return Response(data, media_type=media), len(data)


def _cost(model: LoadedModel, request: InferRequest) -> int:
    """Returns what it costs to label the answer to a request. What masks cost depends on the size of the picture."""
    return max(request.result_bytes, LONG_COST if model.presentation.masks else 0)


def _labelled(model: LoadedModel, request: InferRequest) -> tuple[bytes, int]:
    """Returns the answer to a request as JSON, and its bytes."""
    content = labelled(model.spec, model.presentation, request.result or {}, request.inputs)
    return content, len(content)


def wanted_media(accept: str) -> set[str]:
    """Returns the image types of an Accept header if it prefers a picture to JSON, else an empty set.

    Raises ServingError: NOT_ACCEPTABLE if the header accepts neither, INVALID if a quality is no number.
    """
    json_quality = picture_quality = 0.0
    pictures: set[str] = set()
    for part in accept.split(","):
        media, *options = (text.strip().lower() for text in part.split(";"))
        quality = 1.0
        for option in options:
            if option.startswith("q="):
                try:
                    quality = float(option[2:])
                except ValueError:
                    raise invalid(f"Accept: '{part.strip()}' has no valid quality") from None
        if media in ("application/json", "application/*"):
            json_quality = max(json_quality, quality)
        elif media == "*/*":  # the client accepts anything: it gets JSON, unless the header names a picture as well
            json_quality = max(json_quality, quality * 0.99)
        elif media.startswith("image/") and quality:
            pictures.add(media)
            picture_quality = max(picture_quality, quality)
    if picture_quality > json_quality:
        return pictures
    if not json_quality:
        raise ServingError(Kind.NOT_ACCEPTABLE, f"Accept: expected application/json or image/*, got '{accept[:80]}'")
    return set()


async def _payload(gateway: Gateway, request: Request, model: LoadedModel) -> _Payload:
    """Reads the body. Raises ServingError."""
    settings, media_types = gateway.settings, model.presentation.media_types
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media == "multipart/form-data":
        return await _form(gateway, request)
    # A model that takes a sound or a picture judges the bytes and not their name, of which some have several.
    families = {"image", *(known.partition("/")[0] for known in media_types)} - {"application"}
    fits = media in (JSON, "application/octet-stream", *media_types) or media.partition("/")[0] in families
    table = media == CSV and file_input(model.spec) is None
    if not fits and not table and "*" not in families:
        of_files = (*media_types, "application/octet-stream") if file_input(model.spec) is not None else (CSV,)
        expected = ", ".join((*of_files, "multipart/form-data")) + f" or {JSON}"
        raise ServingError(Kind.MEDIA_TYPE, f"Content-Type: expected {expected}, got '{media[:80]}'")
    if media != JSON and not table:
        body = await read_body(gateway, request, *smallest(settings, "max_body_bytes"))
        return _Payload(lambda: bytes(body.unpacked()), body.most, body.most)
    body = await read_body(gateway, request, *smallest(settings, "max_body_bytes", "max_json_bytes"))

    def content() -> Content:
        text = body.unpacked()
        if table:
            return csv_rows(model.spec, bytes(text), gateway.limits)
        several = bytes(text[:_BEGINNING]).lstrip().startswith(b"[")
        return json_rows(bytes(text), gateway.limits) if several else members(text, gateway.limits)

    return _Payload(content, body.size, body.most)


async def _form(gateway: Gateway, request: Request) -> _Payload:
    limit, setting = smallest(gateway.settings, "max_body_bytes")
    announced = request.headers.get("content-length", "")
    if not announced.isdecimal():
        raise invalid("a multipart form needs a Content-Length")
    if int(announced) > limit:
        raise too_large("the body", limit, setting)
    given: dict[str, list[Value]] = {}
    tensors = gateway.limits.max_tensors
    try:
        async with request.form(max_files=tensors, max_fields=tensors, max_part_size=limit) as form:
            for name, part in form.multi_items():
                given.setdefault(name, []).append(await part.read() if isinstance(part, UploadFile) else part)
    except HTTPException as error:
        raise invalid(f"the form can't be read: {error.detail}") from None
    except ClientDisconnect:
        raise ServingError(Kind.CANCELED, "the client left while it sent the form") from None
    values: dict[str, Value | list[Value]] = {
        name: parts[0] if len(parts) == 1 else parts for name, parts in given.items()
    }
    return _Payload(lambda: values, int(announced))
