"""Classifiers, vectors and readers of lines against Pillow, OpenCV and NumPy; files that can't be attached."""

from __future__ import annotations

import io

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from PIL import Image

from opgate.attach.attach import attach
from opgate.attach.model.attached import write
from opgate.attach.model.report import DEFAULT, RAN, SAID, AttachError
from opgate.attach.model.wish import Wish
from tests.attach import networks
from tests.attach.conftest import Make, Model, png, squares

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    small = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("softmax", [False, True], ids=["logits", "probabilities"])
def test_a_classifier_has_the_crop_of_torchvision(made: Make, tmp_path, softmax: bool) -> None:
    file = networks.classifier(tmp_path / "net.onnx", softmax=softmax, metadata={"names": "red,green,blue"})
    model = made(file)
    pixels = noise(120, 90)
    image = Image.fromarray(pixels)
    shorter = round(32 / 0.875)
    image = image.resize((shorter, int(shorter * 120 / 90)), Image.Resampling.BILINEAR)
    top = round((image.height - 32) / 2)
    left = round((image.width - 32) / 2)
    x = np.asarray(image)[top : top + 32, left : left + 32] / 255
    (scores,) = onnxruntime.InferenceSession(file).run(
        None, {"x": ((x - MEAN) / STD).transpose(2, 0, 1)[None].astype(np.float32)}
    )
    probabilities = scores[0] if softmax else np.exp(scores[0]) / np.exp(scores[0]).sum()
    found = model.predict(png(pixels))[0]["predictions"]
    order = np.argsort(-probabilities)
    assert [record["label"] for record in found] == [networks.NAMES[i] for i in order]
    np.testing.assert_allclose([record["score"] for record in found], probabilities[order], atol=0.003)


def facts(model: Model) -> list[tuple[str, ...]]:
    return [(fact.subject, fact.value, fact.origin, fact.why) for fact in model.attached.report.facts]


def found(model: Model, colour: tuple[int, int, int]) -> list[tuple[object, float]]:
    """What a model answers to a picture of one colour: labels and scores."""
    (answer,) = model.predict(png(np.full((32, 32, 3), colour, np.uint8)))
    return [(record["label"], round(record["score"], 3)) for record in answer["predictions"]]


WEIGHTS = np.array([[4, -4, 2], [1, 1, 1], [0, 0, 3]], np.float32)


def test_probabilities_of_each_class_for_itself_stay_as_they_are(made: Make, tmp_path) -> None:
    file = networks.scores(tmp_path / "net.onnx", WEIGHTS, "Sigmoid")
    model = made(file, pre="stretch unit", post="classify", labels=",".join(networks.NAMES))
    expected = [("red", 0.982), ("blue", 0.881), ("green", 0.018)]
    assert found(model, (255, 0, 0)) == expected
    assert ("scores", "probabilities", RAN) in [fact[:3] for fact in facts(model)]
    logits = made(networks.scores(tmp_path / "logits.onnx", np.abs(WEIGHTS) / 9), "logits", post="classify")
    assert "a softmax is added" in logits.report  # within 0..1 on noise, beyond it on a picture of another range


def test_one_class_is_the_positive_one(made: Make, tmp_path) -> None:
    files = [
        networks.scores(tmp_path / f"{len(last)}.onnx", WEIGHTS[:, :1], *last) for last in ((), ("Sigmoid",))
    ]  # logits and probabilities
    for number, file in enumerate(files):
        said = {"pre": "stretch unit", "post": "classify"}
        one = made(file, f"one{number}", **said)
        assert found(one, (255, 0, 0)) == [(0, 0.982)]
        two = made(file, f"two{number}", labels="dog,cat", **said)
        assert found(two, (255, 0, 0)) == [("cat", 0.982), ("dog", 0.018)]
    (tmp_path / "labels.txt").write_text("cat\n")
    named = made(files[0], "named", labels=str(tmp_path / "labels.txt"), **said)
    assert found(named, (0, 0, 0)) == [("cat", 0.5)]


@pytest.mark.parametrize("post", ["classify:3 softmax", "embed"])
def test_outputs_of_f64(made: Make, tmp_path, post: str) -> None:
    model = made(networks.scores(tmp_path / "net.onnx", WEIGHTS, dtype=TensorProto.DOUBLE), post=post, pre="unit")
    answer = model.predict(png(np.zeros((32, 32, 3), np.uint8)))[0]
    assert answer.get("predictions") or answer["outputs"]


def test_integers_are_no_scores(tmp_path) -> None:
    file = networks.scores(tmp_path / "net.onnx", WEIGHTS, dtype=TensorProto.INT64)
    with pytest.raises(AttachError, match=r"--post: classify needs scores, and scores_out \[1, 3\] has integers"):
        attach(Wish(file, post="classify"), "model")


def test_a_missing_file_of_characters_is_said(tmp_path) -> None:
    file = networks.lines(tmp_path / "net.onnx", steps_first=False)
    with pytest.raises(AttachError, match=r"--post ctc:missing.txt: expected metadata, or a file"):
        attach(Wish(file, pre="height:16 grey", post="ctc:missing.txt"), "model")


def test_a_vector_has_the_length_one(made: Make, tmp_path) -> None:
    file = networks.classifier(tmp_path / "net.onnx", name="embedding")
    model = made(file, pre="stretch:32 unit pil-bilinear")
    pixels = noise(32, 32)
    mean = pixels.reshape(-1, 3).mean(0)
    answer = model.predict(png(pixels))[0]["outputs"]
    np.testing.assert_allclose(answer["embedding"], mean / np.linalg.norm(mean), atol=1e-4)
    assert "embed" in model.report


@pytest.mark.parametrize("steps_first", [False, True], ids=["rows first", "steps first"])
def test_lines_of_different_widths_are_read(made: Make, tmp_path, steps_first: bool) -> None:
    file = networks.lines(tmp_path / "net.onnx", steps_first=steps_first)
    (tmp_path / "characters.txt").write_text("a\nb\nc\nd\ne\n")
    said = {"pre": "grey height:16 half bucket:8 pad:0", "post": f"ctc:{tmp_path / 'characters.txt'} blank:0"}
    model = made(file, **said)

    def line(levels: list[int]) -> bytes:
        """A line whose steps have these levels of grey, of fifths; 0 is the blank."""
        return png(np.repeat(np.array(levels, np.uint8) * 51, 8)[None].repeat(16, 0))

    first, second = line([1, 1, 0, 2, 3, 0, 3]), line([5, 4, 4, 0, 0, 4, 1, 2, 3, 5, 5])
    together = made(file, "together", **said, max_batch_size=4)
    for each in (model, together):
        answers = [answer["predictions"] for answer in each.predict(first, second)]
        assert [records[0]["text"] for records in answers] == ["abcc", "eddabce"]
        assert all(0.9 < records[0]["score"] <= 1 for records in answers)
    assert "max_batch_size: 1\n" in model.attached.config and "dynamic_batching" not in model.attached.config
    assert ("max_batch_size", "1", DEFAULT, "because a larger picture beside it would change its answer") in facts(
        model
    )
    assert "max_batch_size: 4\n" in together.attached.config
    assert "an answer depends on the largest picture of its batch" in together.report
    fixed = attach(Wish(file, **{**said, "pre": f"{said['pre'].replace('bucket:8', 'bucket:0')} widest:64"}), "model")
    assert "max_batch_size: 8\n" in fixed.config


def test_a_beam_sums_the_alignments_of_a_text(made: Make, tmp_path) -> None:
    file = networks.lines(tmp_path / "net.onnx", steps_first=False)
    (tmp_path / "characters.txt").write_text("a\nb\nc\nd\ne\n")
    said = {"pre": "grey height:16 half bucket:8 pad:0"}
    head = f"ctc:{tmp_path / 'characters.txt'} blank:0"
    greedy, beam = made(file, "greedy", post=head, **said), made(file, "beam", post=f"{head} beam:10", **said)
    doubtful = png(np.full((16, 16), 25, np.uint8))  # each of two steps has 0.56 for the blank and 0.44 for a
    clear = png(np.repeat(np.array([51, 0, 102, 153], np.uint8), 8)[None].repeat(16, 0))
    answers = [[answer["predictions"][0] for answer in model.predict(doubtful, clear)] for model in (greedy, beam)]
    assert [[record["text"] for record in records] for records in answers] == [["", "abc"], ["a", "abc"]]
    scores = [[record["score"] for record in records] for records in answers]
    np.testing.assert_allclose(scores, [[0, 1], [1 - 0.5585**2, 1]], atol=1e-3)
    assert ("beam", "10 texts", SAID, "the score is the probability of the whole text") in facts(beam)


def test_nhwc_f16_and_u8_inputs(made: Make, tmp_path) -> None:
    for name, dtype, pre in (("half", TensorProto.FLOAT16, "unit"), ("bytes", TensorProto.UINT8, "")):
        x = helper.make_tensor_value_info("x", dtype, ["N", 32, 32, 3])
        out = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 3])
        nodes = [
            helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["wide"], ["logits"], axes=[1, 2], keepdims=0),
        ]
        model = helper.make_model(
            helper.make_graph(nodes, name, [x], [out]), opset_imports=[helper.make_opsetid("", 13)], ir_version=8
        )
        onnx.save(model, tmp_path / f"{name}.onnx")
        served = made(
            tmp_path / f"{name}.onnx", name, pre=f"stretch:32 cv-linear {pre}", post="classify:3 probabilities"
        )
        pixels = noise(40, 50)
        expected = cv2.resize(pixels, (32, 32)).reshape(-1, 3).mean(0) / (255 if name == "half" else 1)
        scores = {record["label"]: record["score"] for record in served.predict(png(pixels))[0]["predictions"]}
        np.testing.assert_allclose([scores[i] for i in range(3)], expected, rtol=2e-3)
        assert "NHWC" in served.report


def test_a_network_for_one_picture_whose_batch_cannot_be_opened_is_served_alone(made: Make, tmp_path) -> None:
    net = networks.Net(size=32, batch=1)
    net.add("ReduceMean", ["x"], "mean", axes=[0, 2, 3], keepdims=0)  # a mean over the batch, too
    shape = net.constant("shape", [1, 3], np.int64)
    net.add("Reshape", ["mean", shape], "logits")
    file = net.save(tmp_path / "net.onnx", {"logits": [3]})
    model = made(file, pre="stretch:32 unit cv-linear", labels=",".join(networks.NAMES))
    assert "max_batch_size: 1\n" in model.attached.config and "batch: fixed at 1 picture" in model.report
    red, blue = squares((32, 32), (0, 0)), squares((32, 32), (0, 0), 2)
    answers = model.predict(png(red), png(blue))
    assert [answer["predictions"][0]["label"] for answer in answers] == ["red", "blue"]
    with pytest.raises(AttachError, match="--max-batch-size: the network takes one picture at a time"):
        attach(Wish(file, pre="stretch:32", max_batch_size=4), "model")


def test_what_is_not_known_is_asked_for(tmp_path) -> None:
    with pytest.raises(AttachError, match=r"--post: .* fits classify:3 \(3 classes\) or embed"):
        attach(Wish(networks.classifier(tmp_path / "a.onnx", name="out")), "model")
    with pytest.raises(AttachError, match="--pre: the size of the input 'x' is open: say it, such as letterbox:640"):
        attach(Wish(networks.classifier(tmp_path / "b.onnx", shape=["batch", 3, "h", "w"])), "model")
    detr = networks.detr(tmp_path / "c.onnx", logits=True)
    with pytest.raises(AttachError, match=r"say sigmoid .* or softmax background-last"):
        attach(Wish(detr), "model")
    with pytest.raises(AttachError, match=r"--labels: expected 3 labels, .* got 2; .* say classes:2 behind yolov8"):
        attach(Wish(networks.yolov8(tmp_path / "e.onnx"), labels="a,b"), "model")
    with pytest.raises(AttachError, match="--labels: expected 3 labels"):
        attach(Wish(networks.classifier(tmp_path / "d.onnx"), labels="a,b"), "model")


def test_other_networks_are_refused(tmp_path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "table", [x], [y])
    onnx.save(helper.make_model(graph, ir_version=8), tmp_path / "table.onnx")
    with pytest.raises(AttachError, match=r"table.onnx takes no picture: its inputs are x f32\[N, 4\]"):
        attach(Wish(tmp_path / "table.onnx"), "model")
    with pytest.raises(AttachError, match=r"--input: .* has no input 'pixels'"):
        attach(Wish(networks.classifier(tmp_path / "a.onnx"), input="pixels"), "model")


def test_a_picture_without_a_batch_is_said(tmp_path) -> None:
    x = helper.make_tensor_value_info("image", TensorProto.FLOAT, [3, 320, 320])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 320, 320])
    graph = helper.make_graph([helper.make_node("Relu", ["image"], ["y"])], "detector", [x], [y])
    onnx.save(helper.make_model(graph, ir_version=8), tmp_path / "net.onnx")
    with pytest.raises(AttachError, match=r"without an axis for the batch: .* of the shape \[1, 3, 320, 320\]"):
        attach(Wish(tmp_path / "net.onnx"), "model")


def test_nothing_that_is_there_is_replaced(library, tmp_path) -> None:
    attached = attach(Wish(networks.classifier(tmp_path / "a.onnx")), "model")
    write(attached, tmp_path / "model", library, "", overwrite=False)
    with pytest.raises(ValueError, match="--overwrite"):
        write(attached, tmp_path / "model", library, "", overwrite=False)
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"1", "config.pbtxt", "README.md", "report.txt"}


def test_names_of_the_network_may_be_those_of_a_served_model(made: Make, tmp_path) -> None:
    file = networks.classifier(tmp_path / "a.onnx", name="scores")
    model = onnx.load(file)
    model.graph.input[0].name = model.graph.node[0].input[0] = "data"
    onnx.save(model, file)
    served = made(file, pre="stretch:32 unit", input="data", labels=",".join(networks.NAMES))
    jpeg = io.BytesIO()
    Image.new("RGB", (50, 40), (0, 0, 255)).save(jpeg, "JPEG")
    assert served.predict(jpeg.getvalue())[0]["predictions"][0]["label"] == "blue"
    assert "bit for bit" in served.report


def test_a_network_with_ops_of_opgate(made: Make, library, tmp_path) -> None:
    file = networks.classifier(tmp_path / "net.onnx")
    model = onnx.load(file)
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(helper.make_node("Mish", ["before"], ["logits"], domain="opgate"))
    model.opset_import.append(helper.make_opsetid("opgate", 1))
    onnx.save(model, file)
    served = made(file, pre="stretch unit", labels=",".join(networks.NAMES), libraries=(library,))
    assert served.predict(png(squares((32, 32), (0, 0), 1)))[0]["predictions"][0]["label"] == "green"


@pytest.mark.parametrize("opset", [8, 11, 13, 18, 21])
def test_networks_of_all_ages(made: Make, tmp_path, opset: int) -> None:
    file = networks.classifier(tmp_path / "net.onnx", opset=opset)
    if opset == 8:  # constants were inputs, too
        model = onnx.load(file)
        model.ir_version = 3
        model.graph.initializer.append(helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]))
        model.graph.input.append(helper.make_tensor_value_info("one", TensorProto.FLOAT, [1]))
        model.graph.node[-1].output[0] = "before"
        model.graph.node.append(helper.make_node("Mul", ["before", "one"], ["logits"]))
        onnx.save(model, file)
    served = made(file, pre="stretch unit", labels=",".join(networks.NAMES))
    assert served.predict(png(squares((32, 32), (0, 0), 1)))[0]["predictions"][0]["label"] == "green"
    assert "bit for bit" in served.report


@pytest.mark.parametrize("opset", [11, 12, 13])
def test_detectors_of_older_opsets(made: Make, tmp_path, opset: int) -> None:
    model = made(networks.yolov8(tmp_path / "net.onnx", opset=opset))
    assert model.predict(png(squares()))[0]["predictions"][0]["label"] == "red"
