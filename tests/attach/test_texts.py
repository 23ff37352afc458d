"""Networks that read: a tokenizer before them, labels and vectors behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

from opgate.attach.attach import attach
from opgate.attach.model.report import AttachError
from opgate.attach.model.takes import BATCH
from opgate.attach.model.wish import Wish
from opgate.attach.texts import tokenizer_files
from tests.attach.conftest import Make, Model

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "good",
    "bad",
    "film",
    "##s",
    "!",
    "the",
    "not",
    "##ly",
    "東",
    "京",
    "cafe",
]
TEXTS = ["good films", "The film, not good!", "bad", "not badly", "Café 東京", "unknown words here", ""]
TABLE = np.random.default_rng(0).standard_normal((len(WORDS), 3)).astype(np.float32)


def tokenizer(folder: Path, *, cased: bool = False, most: int = 512) -> Tokenizer:
    """Writes vocab.txt into a folder. Returns the tokenizer of it."""
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    made = Tokenizer.from_str(tokenizer_files.read(folder / "vocab.txt", cased=cased))
    made.enable_truncation(most)
    return made


def network(path: Path, *, mask: bool = True, types: bool = False, size: Any = "s", pooled: bool = True) -> Path:
    """logits [n, 3] = the sum of the rows of TABLE of the tokens, each plus its type; or those of each token."""
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["rows"])]
    inputs, x = ["input_ids"], "rows"
    if types:
        inputs.append("token_type_ids")
        nodes.append(helper.make_node("Cast", ["token_type_ids"], ["types"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Unsqueeze", ["types", "last"], ["types.each"]))
        nodes.append(helper.make_node("Add", [x, "types.each"], ["typed"]))
        x = "typed"
    if mask and pooled:
        nodes.append(helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Unsqueeze", ["mask", "last"], ["mask.each"]))
        nodes.append(helper.make_node("Mul", [x, "mask.each"], ["masked"]))
        x = "masked"
    if mask:
        inputs.append("attention_mask")
    if pooled:
        nodes.append(helper.make_node("ReduceSum", [x, "tokens"], ["logits"], keepdims=0))
    else:
        nodes.append(helper.make_node("Identity", [x], ["logits"]))
    if mask and not pooled:
        nodes.append(helper.make_node("Identity", ["attention_mask"], ["unused"]))
    constants = [numpy_helper.from_array(TABLE, "table")]
    constants += [numpy_helper.from_array(np.array([axis]), name) for name, axis in (("last", 2), ("tokens", 1))]
    given = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", size]) for name in inputs]
    out = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3] if pooled else ["n", size, 3])
    graph = helper.make_graph(nodes, "reader", given, [out], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def predict(model: Model, *values: dict[str, Any]) -> list[Any]:
    answers = model.send([{"json": each} for each in values])
    assert [answer.status_code for answer in answers] == [200] * len(values), [each.text for each in answers]
    return [answer.json() for answer in answers]


def logits(made: Tokenizer, text: str, pair: str | None = None, types: bool = False) -> np.ndarray:
    encoding = made.encode(text, pair)
    rows = TABLE[encoding.ids]
    return (rows + np.array(encoding.type_ids)[:, None] * types).sum(0)


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def scores(answer: Any) -> list[float]:
    found = {each["label"]: each["score"] for each in answer["predictions"]}
    return [found[name] for name in ("a", "b", "c")]


@pytest.mark.parametrize("form", ["vocab.txt", "tokenizer.json", "beside"])
def test_texts_become_labels(made: Make, tmp_path: Path, form: str) -> None:
    own = tokenizer(tmp_path)
    if form != "vocab.txt":
        own.no_truncation()
        own.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "a", "1": "b", "2": "c"}}))
    pre = "" if form == "beside" else str(tmp_path / form)
    model = made(
        network(tmp_path / "net.onnx"), pre=pre, labels="" if form == "beside" else str(tmp_path / "config.json")
    )
    answers = predict(model, *({"text": text} for text in TEXTS))
    for text, answer in zip(TEXTS, answers, strict=True):
        assert scores(answer) == pytest.approx(softmax(logits(own, text)), abs=1e-6), text
    (together,) = model.send([{"json": [{"text": text} for text in TEXTS]}])
    assert together.json() == {"results": answers}
    (form_answer,) = model.send([{"data": {"text": TEXTS[0], "top_k": "1"}, "files": {"x": b""}}])
    assert form_answer.status_code == 400  # there is no input x
    assert "padding: 3 texts of several lengths" in model.report
    assert 'string_value: "text=64,256,1024,4096"' in model.attached.config


@pytest.mark.parametrize("word", ["", " cased"])
def test_a_vocabulary_of_bert_may_be_cased(made: Make, tmp_path: Path, word: str) -> None:
    own = tokenizer(tmp_path, cased=bool(word))
    model = made(network(tmp_path / "net.onnx"), pre=f"{tmp_path / 'vocab.txt'}{word}", labels="a,b,c")
    for text in ("Good", "good", "CAFÉ"):
        (answer,) = predict(model, {"text": text})
        assert scores(answer) == pytest.approx(softmax(logits(own, text)), abs=1e-6)


def test_a_vocabulary_of_byte_pairs_has_merges_beside_it(made: Make, tmp_path: Path) -> None:
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "g", "o", "d", "go", "od", "\u0120", "b", "a", "ad", "bad", "good"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\ng o\no d\na d\nb ad\ngo od\n")
    own = Tokenizer.from_str(tokenizer_files.read(tmp_path / "vocab.json"))
    assert own.encode("good bad").tokens == ["<s>", "good", "\u0120", "bad", "</s>"]
    model = made(network(tmp_path / "net.onnx"), pre=str(tmp_path / "vocab.json"), labels="a,b,c")
    for text in ("good bad", "dog", ""):
        (answer,) = predict(model, {"text": text})
        assert scores(answer) == pytest.approx(softmax(logits(own, text)), abs=1e-6)


def test_a_long_text_is_cut(made: Make, tmp_path: Path) -> None:
    own = tokenizer(tmp_path, most=6)
    model = made(network(tmp_path / "net.onnx"), pre=f"{tmp_path / 'vocab.txt'}:6", labels="a,b,c")
    text = "good bad " * 1000
    (answer,) = predict(model, {"text": text})
    assert scores(answer) == pytest.approx(softmax(logits(own, text)), abs=1e-6)


def test_pairs_have_types(made: Make, tmp_path: Path) -> None:
    own = tokenizer(tmp_path)
    model = made(network(tmp_path / "net.onnx", types=True), pre=f"{tmp_path / 'vocab.txt'} pair", labels="a,b,c")
    pairs = [("good", "bad films"), ("the film!", "not good"), ("", "bad")]
    answers = predict(model, *({"text": text, "pair": pair} for text, pair in pairs))
    for (text, pair), answer in zip(pairs, answers, strict=True):
        assert scores(answer) == pytest.approx(softmax(logits(own, text, pair, types=True)), abs=1e-6)
    (missing,) = model.send([{"json": {"text": "good"}}])
    assert missing.status_code == 400 and "'pair'" in missing.json()["error"]


def test_a_network_of_a_fixed_size_gets_padding(made: Make, tmp_path: Path) -> None:
    own = tokenizer(tmp_path, most=8)
    model = made(network(tmp_path / "net.onnx", size=8), pre=str(tmp_path / "vocab.txt"), labels="a,b,c")
    for text, answer in zip(TEXTS, predict(model, *({"text": text} for text in TEXTS)), strict=True):
        assert scores(answer) == pytest.approx(softmax(logits(own, text)), abs=1e-6)


def test_without_a_mask_texts_run_alone(made: Make, tmp_path: Path) -> None:
    own = tokenizer(tmp_path)
    model = made(network(tmp_path / "net.onnx", mask=False), pre=str(tmp_path / "vocab.txt"), labels="a,b,c")
    for text, answer in zip(TEXTS, predict(model, *({"text": text} for text in TEXTS)), strict=True):
        assert scores(answer) == pytest.approx(softmax(logits(own, text)), abs=1e-6)
    assert "one text at a time: without a mask" in model.report and "max_batch_size: 1\n" in model.attached.config
    assert "length_buckets" not in model.attached.config


@pytest.mark.parametrize("pool", ["mean-pool", "cls-pool", "last-pool", "max-pool"])
@pytest.mark.parametrize("length", ["normalize", "unscaled"])
def test_a_vector_of_the_tokens(made: Make, tmp_path: Path, pool: str, length: str) -> None:
    own = tokenizer(tmp_path)
    file = network(tmp_path / "net.onnx", pooled=False)
    model = made(file, pre=str(tmp_path / "vocab.txt"), post=f"{pool} {length}")
    answers = predict(model, *({"text": text} for text in TEXTS))
    for text, answer in zip(TEXTS, answers, strict=True):
        rows = TABLE[own.encode(text).ids]
        vector = {"mean-pool": rows.mean(0), "cls-pool": rows[0], "last-pool": rows[-1], "max-pool": rows.max(0)}[pool]
        expected = vector / np.linalg.norm(vector) if length == "normalize" else vector
        assert answer["outputs"]["embedding"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("size", ["s", 12])
@pytest.mark.parametrize("pool", ["mean-pool", "last-pool"])
def test_a_vector_of_a_network_of_a_fixed_size(made: Make, tmp_path: Path, size: Any, pool: str) -> None:
    own = tokenizer(tmp_path, most=12)
    file = network(tmp_path / "net.onnx", pooled=False, size=size)
    model = made(file, pre=str(tmp_path / "vocab.txt"), post=f"{pool} unscaled")
    for text, answer in zip(TEXTS, predict(model, *({"text": text} for text in TEXTS)), strict=True):
        rows = TABLE[own.encode(text).ids]
        assert answer["outputs"]["embedding"] == pytest.approx(
            rows.mean(0) if pool == "mean-pool" else rows[-1], abs=1e-6
        )


@pytest.mark.parametrize("mask", [True, False])
def test_a_text_without_tokens_is_refused(made: Make, tmp_path: Path, mask: bool) -> None:
    """The mean over no tokens would be NaN. The text beside it gets its answer."""
    own = tokenizer(tmp_path)
    file = network(tmp_path / "net.onnx", mask=mask)
    loaded = onnx.load(file)
    pool = next(node for node in loaded.graph.node if node.op_type == "ReduceSum")
    pool.CopyFrom(helper.make_node("ReduceMean", pool.input[:1], pool.output, keepdims=0, axes=[1]))
    onnx.save(loaded, file)
    model = made(file, pre=f"{tmp_path / 'vocab.txt'} bare", labels="a,b,c")
    alone = model.send([{"json": {"text": ""}}, {"json": {"text": "   "}}])
    for answer in alone:
        assert answer.status_code == 400, answer.text
        assert "the text has no tokens: expected a text that is not empty" in answer.json()["error"]
    (both,) = model.send([{"json": [{"text": ""}, {"text": "good films"}]}])
    first, second = both.json()["results"]
    assert "the text has no tokens" in first["error"]
    rows = TABLE[own.encode("good films", add_special_tokens=False).ids]
    assert scores(second) == pytest.approx(softmax(rows.mean(0)), abs=1e-6)


def test_outputs_are_those_of_the_text_alone(made: Make, tmp_path: Path) -> None:
    own = tokenizer(tmp_path)
    model = made(network(tmp_path / "net.onnx", pooled=False), pre=str(tmp_path / "vocab.txt"))
    answers = predict(model, *({"text": text} for text in (*TEXTS, *TEXTS)))
    for text, answer in zip((*TEXTS, *TEXTS), answers, strict=True):
        np.testing.assert_allclose(answer["outputs"]["logits"], TABLE[own.encode(text).ids], atol=1e-6)
    assert "as long as those of a longer row" in model.report


def test_the_engine_knows_the_shape_of_tokens(made: Make, tmp_path: Path) -> None:
    """Otherwise nodes that compute shapes stay in the graph, which ONNX Runtime leaves out of the network alone."""
    tokenizer(tmp_path)
    model = made(network(tmp_path / "net.onnx"), pre=str(tmp_path / "vocab.txt"))
    proto = onnx.load(model.folder / "1" / "model.onnx")
    shapes = {each.name: [dim.dim_param for dim in each.type.tensor_type.shape.dim] for each in proto.graph.value_info}
    assert shapes["input_ids"] == shapes["attention_mask"] == [BATCH, "tokens"]


@pytest.mark.parametrize("size", ["s", 14])
def test_spans_of_a_text(made: Make, tmp_path: Path, size: Any) -> None:
    """Words in upper case would be better names, but the table knows few: each word has a class of its own."""
    labels = ["O", "B-PER", "I-PER", "B-LOC"]
    table = np.zeros((len(WORDS), 4), np.float32)
    classes = {"good": 1, "bad": 2, "film": 3, "##s": 3, "東": 3, "京": 3}
    for number, word in enumerate(WORDS):
        table[number, classes.get(word, 0)] = 5
    own = tokenizer(tmp_path, most=14)
    file = network(tmp_path / "net.onnx", pooled=False, size=size)
    model_proto = onnx.load(file)
    model_proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(table, "table"))
    model_proto.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 4
    onnx.save(model_proto, file)
    config = {"architectures": ["BertForTokenClassification"], "id2label": dict(enumerate(labels))}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = made(file, pre=str(tmp_path / "vocab.txt"))
    score = pytest.approx(np.exp(5) / (np.exp(5) + 3), abs=1e-5)
    texts = {
        "The GOOD bad films!": [("PER", 4, 12), ("LOC", 13, 17), ("LOC", 17, 18)],
        "not good good": [("PER", 4, 8), ("PER", 9, 13)],
        "Café 東京": [("LOC", 5, 6), ("LOC", 6, 7)],
        "": [],
    }
    answers = predict(model, *({"text": text} for text in texts))
    for (text, spans), answer in zip(texts.items(), answers, strict=True):
        found = [(each["label"], each["start"], each["end"], each["score"]) for each in answer["predictions"]]
        assert found == [(*span, score) for span in spans], text
        assert [each["text"] for each in answer["predictions"]] == [text[begin:end] for _, begin, end in spans]
    assert len(own.encode("The GOOD bad films!").ids) == 8


def test_more_labels_than_classes_are_refused(library: Path, tmp_path: Path) -> None:
    tokenizer(tmp_path)
    wish = Wish(network(tmp_path / "net.onnx"), post="classify:9", libraries=[library])
    with pytest.raises(AttachError, match="--post: classify:9 asks for more labels than the 3 classes"):
        attach(wish, "m")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"pre": "tokenizer.jsn"}, "what is 'tokenizer.jsn'. Did you mean 'tokenizer.json'"),
        ({"pre": "no_such.json"}, "there is no file 'no_such.json': expected a tokenizer.json or a vocab.txt"),
        ({"pre": "{folder}/vocab.txt:0"}, "expected vocab.txt:1 to vocab.txt:1048576 tokens, got 0"),
        ({"pre": "{folder}/vocab.txt pair pair"}, "expected a file and words such as pair"),
        ({"pre": "{folder}/tokenizer.json cased"}, "cased goes with a vocab.txt"),
        ({"pre": "{folder}/broken.json"}, "is no JSON"),
        ({"pre": "{folder}/other.json"}, "expected a tokenizer.json with 'model'"),
        ({"pre": "{folder}/short.txt"}, r"expected a line \[UNK\]"),
        ({"pre": "{folder}/vocab.txt", "post": "embed"}, "embed needs|which vector"),
        ({"pre": "{folder}/vocab.txt", "post": "speech"}, "speech doesn't go with what this network takes"),
        ({"pre": "{folder}/vocab.txt", "post": "mean-pool cls-pool"}, "both say the pool"),
    ],
)
def test_what_is_said_wrongly(library: Path, tmp_path: Path, said: dict[str, str], message: str) -> None:
    tokenizer(tmp_path).save(str(tmp_path / "tokenizer.json"))
    for name, text in (("broken.json", "{"), ("other.json", "[1]"), ("short.txt", "a\nb\n")):
        (tmp_path / name).write_text(text)
    file = network(tmp_path / "net.onnx", pooled=False)
    stated = {key: value.format(folder=tmp_path) for key, value in said.items()}
    with pytest.raises(AttachError, match=message):
        attach(Wish(file, libraries=(library,), **stated), "model")
