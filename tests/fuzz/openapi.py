"""The gateway's OpenAPI document against the gateway: schemathesis sends what the document allows, and what it doesn't."""

from __future__ import annotations

import json

import schemathesis
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from tests.fuzz.gateway import Answer, Fuzzed

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]


def cases(gateway: Fuzzed) -> st.SearchStrategy[schemathesis.Case]:
    """Draws calls of all operations of the document: what it allows, and where there is a body also what it doesn't."""
    schema = schemathesis.openapi.from_dict(json.loads(gateway.server.get("/openapi.json")))
    schema.config.update(base_url=gateway.server.url)
    drawn = []
    for result in schema.get_all_operations():
        operation = result.ok()
        drawn.append(operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE))
        if operation.body:
            drawn.append(operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
    return st.one_of(drawn)


def call(gateway: Fuzzed, case: schemathesis.Case) -> None:
    """Makes a call and checks the answer."""
    used = list(CHECKS)
    # A schema can't say that a shape fits the data, what the JSON in a form is, that 1.0 is no integer, that lists are
    # even (plain), what a model refuses (ragged), what there is to load and to register, or that no file for traces is.
    untold = ("infer", "profile", "identity_INT64", "plain", "ragged", "load", "register", "setting", "logging")
    told = not any(f"/{part}/" in f"{case.path}/" for part in untold)
    if told and case.media_type not in ("multipart/form-data", "text/csv"):  # nor the names in a CSV
        used.append(checks.positive_data_acceptance)
    response = case.call(timeout=20)
    # Such numbers are no JSON (docs/gateway.md), and schemathesis reads them as null.
    if b"Infinity" in response.content or b"NaN" in response.content:
        used.remove(checks.response_schema_conformance)
    # Nor can it say that a parameter stands beside "parameters" or in it.
    if response.status_code == 400 and b"is given twice: beside 'parameters' and in it" in response.content:
        used = [check for check in used if check is not checks.positive_data_acceptance]
    if response.status_code == 413:  # also a refusal
        used.remove(checks.negative_data_rejection)
    if case.path == "/v2/logging":  # the rules need the log
        gateway.post("/v2/logging", b'{"log_error": null}')
    case.validate_response(response, checks=used)
    gateway.check(Answer(response.status_code, dict(response.headers), response.content))
