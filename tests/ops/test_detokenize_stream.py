"""DetokenizeStream against DecodeStream of Hugging Face's package `tokenizers`, against Detokenize, and in a sequence
that the gateway serves with the config of the op's README."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
import tokenizers as hf
from onnx import TensorProto, helper
from tokenizers.decoders import DecodeStream

from opgate.ops_build.case import Array
from opgate.ops_build.ops.detokenize_stream import reference
from opgate.ops_build.text.samples import texts, tokenizers
from opgate.service.app import create_app
from opgate.service.gateway import Gateway
from opgate.service.settings import Settings
from tests.ops.conftest import RunOp

README = Path(reference.__file__).with_name("README.md")
ROOM = 258


def rows_of(name: str, seed: int) -> list[list[int]]:
    """The ids of texts, some with others among them that a model may give as well."""
    tokenizer = hf.Tokenizer.from_str(tokenizers()[name])
    tokenizer.no_padding()
    rng = np.random.default_rng(seed)
    rows = [tokenizer.encode(text).ids[:60] for text in texts(300, seed)]
    for row in rows[::3]:
        for _ in range(3):
            row.insert(int(rng.integers(len(row) + 1)), int(rng.integers(tokenizer.get_vocab_size() + 5)))
    return [*rows, *rng.integers(0, 300, (40, 20)).tolist()]


def stream(run_op: RunOp, rows: list[list[int]], attributes: dict[str, Any], end: bool) -> list[list[str]]:
    """What each id of each row adds; with `end` also what is left behind the last one."""
    state: Array = np.zeros((len(rows), ROOM), np.int64)
    pieces = []
    for at in range(max(map(len, rows))):
        ids = np.array([[row[at] if at < len(row) else -1] for row in rows])
        text, state = run_op("DetokenizeStream", {"ids": ids, "state": state}, attributes)
        pieces.append(text)
    if end:
        last = {"ids": np.zeros((len(rows), 0), np.int64), "state": state, "end": np.ones((len(rows), 1), np.int32)}
        text, state = run_op("DetokenizeStream", last, attributes)
        assert not state.any()
        pieces.append(text)
    return np.array(pieces, object).T.tolist()


def step(theirs: DecodeStream, tokenizer: hf.Tokenizer, id: int) -> str | None:
    """What DecodeStream gives; None if it can't go on, because the decoder changes what it has given."""
    try:
        return theirs.step(tokenizer, id) or ""
    except Exception as error:
        assert "Invalid prefix" in str(error)
        return None


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("name", list(tokenizers()))
def test_each_piece_is_that_of_a_decode_stream(run_op: RunOp, name: str, skip: bool) -> None:
    text = tokenizers()[name]
    rows = rows_of(name, seed=3)
    ours = stream(run_op, rows, {"tokenizer": text, "skip_special_tokens": skip}, end=False)
    tokenizer = hf.Tokenizer.from_str(text)
    compared = 0
    for row, pieces in zip(rows, ours, strict=True):
        theirs = DecodeStream(skip_special_tokens=skip)
        expected = list(
            itertools.takewhile(lambda piece: piece is not None, (step(theirs, tokenizer, id) for id in row))
        )
        assert pieces[: len(expected)] == expected, row
        compared += len(expected) == len(row)
    assert compared > 0.8 * len(rows)


@pytest.mark.parametrize("name", list(tokenizers()))
def test_pieces_join_to_the_text(run_op: RunOp, name: str) -> None:
    tokenizer = hf.Tokenizer.from_str(tokenizers()[name])
    attributes = {"tokenizer": tokenizers()[name], "skip_special_tokens": True}
    rows = rows_of(name, seed=4)
    pieces = stream(run_op, rows, attributes, end=True)
    width = max(map(len, rows))
    ids = np.array([row + [-1] * (width - len(row)) for row in rows])
    (whole,) = run_op("Detokenize", {"ids": ids}, attributes)
    changed = 0
    for row, ours, text in zip(rows, pieces, whole, strict=True):
        theirs = DecodeStream(skip_special_tokens=True)
        cannot_go_on = None in [step(theirs, tokenizer, id) for id in row]
        if cannot_go_on or not text.startswith("".join(ours[:-1])):
            changed += 1
        else:
            assert "".join(ours) == text
    assert changed < 0.2 * len(rows)


def test_what_was_given_stays(run_op: RunOp) -> None:
    """The byte 0x80 turns the A before it into U+FFFD, which has been given."""
    tokenizer = hf.Tokenizer(hf.models.WordLevel({"<0x41>": 0, "<0x80>": 1, "b": 2}, unk_token="b"))
    tokenizer.decoder = hf.decoders.Sequence([hf.decoders.ByteFallback(), hf.decoders.Fuse()])
    assert stream(run_op, [[0, 1, 2, 2]], {"tokenizer": tokenizer.to_str()}, end=True) == [
        ["A", "", "\ufffdb", "b", ""]
    ]


def save(repository: Path, tokenizer: str) -> None:
    """Writes the model of the README."""
    types = {"ids": TensorProto.INT64, "state": TensorProto.INT64, "end": TensorProto.INT32}
    shapes = {"ids": ["n", "s"], "state": ["n", 66], "end": ["n", 1]}
    outputs = [
        helper.make_tensor_value_info("text", TensorProto.STRING, ["n"]),
        helper.make_tensor_value_info("new_state", TensorProto.INT64, ["n", 66]),
    ]
    node = helper.make_node("DetokenizeStream", [*types], ["text", "new_state"], domain="opgate", tokenizer=tokenizer)
    inputs = [helper.make_tensor_value_info(name, types[name], shapes[name]) for name in types]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("opgate", 1)]
    model = helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets, ir_version=9)
    (repository / "writer" / "1").mkdir(parents=True)
    onnx.save(model, repository / "writer" / "1" / "model.onnx")
    config = re.search(r"```\n(max_batch_size.*?)```", README.read_text(), re.DOTALL)
    assert config is not None
    (repository / "writer" / "config.pbtxt").write_text(config[1])


def test_a_sequence_of_the_gateway_gives_the_text(library: Path, tmp_path: Path) -> None:
    """Two sequences at the same time. Clients send ids alone."""
    text = tokenizers()["gpt2"]
    save(tmp_path, text)
    gateway = Gateway(Settings(model_repository=tmp_path, build_ops=library.resolve().parent, ops_path=""))
    gateway.catalog.load_all()
    tokenizer = hf.Tokenizer.from_str(text)
    wanted = ["Größe 鬱, 今日は 🦥 world", "Мы говорим 鬱"]
    rows = [tokenizer.encode(each).ids for each in wanted]

    async def generate(client: httpx.AsyncClient, id: int) -> list[str]:
        pieces = []
        for at, token in enumerate(rows[id]):
            place = {"sequence_id": id + 1, "sequence_start": at == 0, "sequence_end": at == len(rows[id]) - 1}
            ids = {"name": "ids", "datatype": "INT64", "shape": [1, 1], "data": [token]}
            answer = await client.post("/v2/models/writer/infer", json={"inputs": [ids], "parameters": place})
            assert answer.status_code == 200, answer.text
            (output,) = answer.json()["outputs"]
            assert output["name"] == "text"
            pieces += output["data"]
        return pieces

    async def both() -> list[list[str]]:
        transport = httpx.ASGITransport(create_app(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await asyncio.gather(generate(client, 0), generate(client, 1))

    pieces = asyncio.run(both())
    assert ["".join(each) for each in pieces] == wanted
    assert "\ufffd" not in "".join(map("".join, pieces))
    assert "" in pieces[0]
