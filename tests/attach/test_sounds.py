"""Networks that hear: windows with a state, whole sounds, files and streams."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
import soundfile
from onnx import TensorProto, helper, numpy_helper

from opgate.attach.attach import attach
from opgate.attach.model.report import AttachError
from opgate.attach.model.wish import Wish
from opgate.attach.sounds.sound_proof import wav_of
from opgate.ops_build.ops.note_events.cases import music
from opgate.ops_build.ops.speech_segments.reference import reference as segments
from opgate.service.app import create_app
from opgate.service.gateway import Gateway
from opgate.service.settings import Settings
from tests.attach.conftest import Make, Model

RATE, WINDOW = 8000, 200
_FLOAT = TensorProto.FLOAT


def saved(path: Path, nodes: Any, inputs: Any, outputs: Any, constants: Any = ()) -> Path:
    graph = helper.make_graph(nodes, "net", inputs, outputs, list(constants))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def value(name: str, *shape: Any, number: int = _FLOAT) -> Any:
    return helper.make_tensor_value_info(name, number, list(shape))


def constant(name: str, array: Any, dtype: Any = np.float32) -> Any:
    return numpy_helper.from_array(np.asarray(array, dtype), name)


def listener(path: Path, samples: int | None = None, *, batch: Any = "n", rate: bool = False) -> Path:
    """state [2, n, 1] moves half of the way to the mean magnitude of x [n, samples]: p [n, 1] is 4 times its mean."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("ReduceMean", ["a"], ["m"], axes=[1], keepdims=1),
        helper.make_node("Add", ["state", "m"], ["s"]),
        helper.make_node("Mul", ["s", "half"], ["stateN"]),
        helper.make_node("ReduceMean", ["stateN"], ["level"], axes=[0], keepdims=0),
        helper.make_node("Mul", ["level", "four"], ["loud"]),
        helper.make_node("Clip", ["loud", "zero", "one"], ["p"]),
    ]
    inputs = [value("x", batch, samples or "t"), value("state", 2, batch, 1)]
    if rate:
        nodes[0] = helper.make_node("Abs", ["y"], ["a"])
        nodes[:0] = [
            helper.make_node("Cast", ["sr"], ["rate"], to=_FLOAT),
            helper.make_node("Div", ["rate", "usual"], ["factor"]),
            helper.make_node("Mul", ["x", "factor"], ["y"]),
        ]
        inputs.append(value("sr", number=TensorProto.INT64))
    constants = [constant("half", 0.5), constant("four", 4), constant("zero", 0), constant("one", 1)]
    constants.append(constant("usual", RATE))
    return saved(path, nodes, inputs, [value("p", batch, 1), value("stateN", 2, batch, 1)], constants)


def probabilities(samples: np.ndarray, context: int = 0) -> np.ndarray:
    """What the listener says of each window."""
    count = max(1, -(-len(samples) // WINDOW))
    padded = np.zeros(context + count * WINDOW)
    padded[context : context + len(samples)] = samples
    state, said = 0.0, []
    for i in range(count):
        state = (state + np.abs(padded[i * WINDOW : (i + 1) * WINDOW + context]).mean()) / 2
        said.append(min(1.0, 4 * state))
    return np.array(said, np.float32)


def talk(seconds: float, seed: int = 0) -> np.ndarray:
    """Noise that is loud and quiet in turn, f64 [t], as 16 bits hold it."""
    rng = np.random.default_rng(seed)
    count = int(seconds * RATE)
    loud = np.repeat(rng.random(count // 1600 + 1) > 0.5, 1600)[:count]
    noise = np.clip(rng.standard_normal(count) * np.where(loud, 0.4, 0.01), -1, 0.999)
    return (noise * 32768).round() / 32768


def wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    return wav_of(samples, rate)


def spoken(answers: Any) -> list[list[tuple[float, float, float]]]:
    return [[(each["start"], each["end"], each["score"]) for each in answer["predictions"]] for answer in answers]


def expected(samples: np.ndarray, threshold: float = 0.5, context: int = 0) -> list[Any]:
    heard = probabilities(samples, context)[None]
    found, scores, count, _, _ = segments(
        heard, np.array([len(samples)]), step=WINDOW, rate=RATE, max_segments=1000, threshold=threshold,
        hysteresis=0.15, min_speech_ms=250, min_silence_ms=100, pad_ms=30,
    )  # fmt: skip
    return [pytest.approx((*found[0, i], scores[0, i]), abs=1e-4) for i in range(count[0])]


def predict(model: Model, *sounds: bytes, media: str = "audio/wav", **params: Any) -> list[Any]:
    sent = [{"content": sound, "headers": {"Content-Type": media}, "params": params} for sound in sounds]
    answers = model.send(sent)
    assert [answer.status_code for answer in answers] == [200] * len(sounds), [each.text for each in answers]
    return [answer.json() for answer in answers]


@pytest.mark.parametrize("context", [0, 40])
@pytest.mark.parametrize("fixed", [False, True])
def test_speech_of_a_file_is_that_of_its_windows(made: Make, tmp_path: Path, context: int, fixed: bool) -> None:
    file = listener(tmp_path / "net.onnx", WINDOW + context if fixed else None, batch=1 if fixed else "n", rate=True)
    pre = f"pcm:{RATE},{WINDOW}" + (f" context:{context}" if context else "")
    model = made(file, pre=pre, state="state=stateN", post="speech")
    sounds = [talk(seconds, seed) for seed, seconds in enumerate((6, 0.01, 3.7, 9))]
    found = spoken(predict(model, *map(wav, sounds)))
    assert found == [expected(sound, context=context) for sound in sounds]
    assert sum(map(len, found)) > 5
    assert "bit for bit" in model.report or "apart from" in model.report


def test_a_request_says_its_threshold(made: Make, tmp_path: Path) -> None:
    model = made(listener(tmp_path / "net.onnx"), pre=f"pcm:{RATE},{WINDOW}", state="state=stateN")
    sound = talk(8)
    assert spoken(predict(model, wav(sound), score_threshold=0.8)) == [expected(sound, np.float32(0.8))]
    (answer,) = model.send(
        [{"content": wav(sound), "headers": {"Content-Type": "audio/wav"}, "params": {"score_threshold": 2}}]
    )
    assert answer.status_code == 400 and "score_threshold is not within 0 to 1" in answer.json()["error"]


def test_files_of_other_kinds_and_rates_give_the_same_speech(made: Make, tmp_path: Path) -> None:
    model = made(listener(tmp_path / "net.onnx"), pre=f"pcm:{RATE},{WINDOW}", state="state=stateN")
    sound = talk(6)
    (original,) = spoken(predict(model, wav(sound)))
    stereo = np.stack([sound, sound], 1)
    for form, kind, media in (
        ("FLAC", "PCM_16", "audio/flac"),
        ("WAV", "FLOAT", "audio/x-wav"),
        ("AIFF", "PCM_24", "audio/aiff"),
    ):
        packed = io.BytesIO()
        soundfile.write(packed, stereo, RATE, format=form, subtype=kind)
        assert spoken(predict(model, packed.getvalue(), media=media)) == [original]
    faster = io.BytesIO()
    soundfile.write(faster, np.repeat(sound, 2), 2 * RATE, format="WAV", subtype="FLOAT")
    (other,) = spoken(predict(model, faster.getvalue()))
    assert [each[:2] for each in other] == [pytest.approx(each[:2], abs=0.06) for each in original]


def test_a_broken_file_costs_no_other_its_answer(made: Make, tmp_path: Path) -> None:
    model = made(listener(tmp_path / "net.onnx"), pre=f"pcm:{RATE},{WINDOW} longest:2", state="state=stateN")
    good = wav(talk(1.5))
    files = [good, b"no sound", good[:-100], wav(talk(2.5)), good]
    answers = model.send([{"content": file, "headers": {"Content-Type": "audio/wav"}} for file in files])
    assert [answer.status_code for answer in answers] == [200, 400, 400, 400, 200]
    texts = [answer.json()["error"] for answer in answers[1:4]]
    for text, part in zip(texts, ("not a WAV", "corrupt or truncated", "longer than 2 seconds"), strict=True):
        assert part in text
    assert answers[0].json() == answers[4].json()


def streamed(
    folder: Path,
    library: Path,
    name: str,
    sounds: list[np.ndarray],
    window: int = WINDOW,
    late: int = 0,
    thresholds: Any = lambda number, piece: None,
) -> list[list[dict[str, np.ndarray]]]:
    """Sends the pieces of sounds, all at the same time, and `late` pieces of zeros. Returns the outputs of each.
    `thresholds` says what the piece of a sound states. One that is refused is sent again without."""
    gateway = Gateway(Settings(model_repository=folder, build_ops=library.resolve().parent, ops_path=""))
    gateway.catalog.load_all()
    app = create_app(gateway)

    async def one(client: httpx.AsyncClient, number: int, sound: np.ndarray) -> list[dict[str, np.ndarray]]:
        count = max(1, -(-len(sound) // window)) + late
        padded = np.zeros(count * window, np.float32)
        padded[: len(sound)] = sound
        said = []
        for i in range(count):
            parameters = {"sequence_id": number + 1, "sequence_start": i == 0, "sequence_end": i == count - 1}
            samples = padded[i * window : (i + 1) * window].tolist()
            tensor = {"name": "samples", "shape": [1, window], "datatype": "FP32", "data": samples}
            body: dict[str, Any] = {"parameters": parameters, "inputs": [tensor]}
            more = []
            if (level := thresholds(number, i)) is not None:
                more = [{"name": "score_threshold", "shape": [1, 1], "datatype": "FP32", "data": [level]}]
            answer = await client.post(f"/v2/models/{name}/infer", json={**body, "inputs": [tensor, *more]})
            if level is not None and not 0 <= level <= 1:
                assert answer.status_code == 400 and "score_threshold is not within 0 to 1" in answer.text
                answer = await client.post(f"/v2/models/{name}/infer", json=body)
            assert answer.status_code == 200, answer.text
            outputs = answer.json()["outputs"]
            said.append({each["name"]: np.array(each["data"]).reshape(each["shape"])[0] for each in outputs})
        return said

    async def all_of_them() -> list[list[dict[str, np.ndarray]]]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await asyncio.gather(*(one(client, number, sound) for number, sound in enumerate(sounds)))

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("context", [0, 40])
def test_a_stream_gives_what_the_file_gives(made: Make, library: Path, tmp_path: Path, context: int) -> None:
    pre = f"pcm:{RATE},{WINDOW}" + (f" context:{context}" if context else "")
    model = made(listener(tmp_path / "net.onnx"), pre=pre, state="state=stateN", post="outputs")
    sounds = [talk(seconds, seed) for seed, seconds in enumerate((2, 0.5, 1.3))]
    each = streamed(model.folder.parent, library, f"{model.name}_stream", sounds)
    for sound, answers in zip(sounds, each, strict=True):
        said = np.concatenate([answer["p"] for answer in answers])
        np.testing.assert_allclose(said, probabilities(sound, context), atol=1e-6)
        (answer,) = predict(model, wav(sound))
        count = int(np.ravel(answer["outputs"]["count"])[0])
        assert np.ravel(answer["outputs"]["p"])[:count] == pytest.approx(said, abs=1e-6)


def events(answers: list[dict[str, np.ndarray]]) -> list[tuple[float, float, float]]:
    """The segments of speech that the answers of a stream tell, in their order."""
    return [
        (answer["start"][i], answer["end"][i], answer["scores"][i])
        for answer in answers
        for i in range(int(answer["count"].item()))
    ]


@pytest.mark.parametrize(
    ("words", "post", "hop", "late"),
    [
        ("", "", WINDOW, 0),
        (" context:40", " pad:400 min-speech:60 min-silence:50", WINDOW, 0),
        (" hop:80", " score:0.4 pad:0 min-speech:0 min-silence:0", 80, 2),
    ],
)
def test_speech_of_a_stream_is_that_of_the_file(
    made: Make, library: Path, tmp_path: Path, words: str, post: str, hop: int, late: int
) -> None:
    file = listener(tmp_path / "net.onnx")
    model = made(file, pre=f"pcm:{RATE},{WINDOW}{words}", state="state=stateN", post=f"speech{post}")
    sounds = [talk(hop * count / RATE, seed) for seed, count in enumerate((300, 41, 1, 120))]
    each = streamed(model.folder.parent, library, f"{model.name}_stream", sounds, hop, late)
    found = spoken(predict(model, *map(wav, sounds)))
    assert [events(answers) for answers in each] == [[pytest.approx(one, abs=1e-5) for one in row] for row in found]
    assert sum(map(len, found)) > 5
    for row, answers in zip(found, each, strict=True):
        goes_on = {round(float(answer["since"].item()), 4) for answer in answers} - {-1}
        begins = {round(start, 4) for start, _, _ in row}
        assert begins - {row[-1][0].__round__(4) if row else 0} <= goes_on  # what the last request begins, it ends


@pytest.mark.parametrize(("words", "hop", "late"), [("", WINDOW, 0), (" hop:80", 80, 2)])
def test_a_request_of_a_stream_says_its_threshold(
    made: Make, library: Path, tmp_path: Path, words: str, hop: int, late: int
) -> None:
    """It holds until another one does, for its sequence alone. One beyond the bounds changes nothing."""
    model = made(listener(tmp_path / "net.onnx"), pre=f"pcm:{RATE},{WINDOW}{words}", state="state=stateN")
    sounds = [talk(hop * count / RATE, 3) for count in (300, 300, 300, 120)]
    stated = {(0, 0): 0.8, (1, 0): 0.3, (1, 5): 7.0, (3, 0): 0.3, (3, 1): 0.8}
    each = streamed(model.folder.parent, library, f"{model.name}_stream", sounds, hop, late, lambda *at: stated.get(at))
    for sound, level, answers in zip(sounds, (0.8, 0.3, None, 0.8), each, strict=True):
        (found,) = spoken(predict(model, wav(sound), **({} if level is None else {"score_threshold": level})))
        assert events(answers) == [pytest.approx(one, abs=1e-5) for one in found] and found
    assert len({str(events(answers)) for answers in each[:3]}) == 3


def counted(path: Path, shape: list[int], *, rank: int = 2) -> Path:
    """Gives with each window x [n, 200], or [200], the sum of the magnitudes so far: a state without an axis of rows."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("ReduceMean", ["a"], ["mean"], keepdims=0),
        helper.make_node("Add", ["state", "mean"], ["next"]),
        helper.make_node("ReduceMean", ["next"], ["level"], keepdims=0),
        helper.make_node("Reshape", ["level", "out"], ["y"]),
    ]
    inputs = [value("x", *["n", WINDOW][2 - rank :]), value("state", *shape)]
    out = constant("out", [1, 1][2 - rank :], np.int64)
    return saved(path, nodes, inputs, [value("y", *[1, 1][2 - rank :]), value("next", *shape)], [out])


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("shape", [[], [3], [3, 4]])
def test_a_state_without_an_axis_of_rows(
    made: Make, library: Path, tmp_path: Path, shape: list[int], rank: int
) -> None:
    file = counted(tmp_path / "net.onnx", shape, rank=rank)
    model = made(file, pre=f"pcm:{RATE},{WINDOW}", state="state=next", post="outputs")
    assert "batch: one request at a time: its state state has no axis of rows" in model.report
    sounds = [talk(1, 1), talk(0.4, 2)]
    each = streamed(model.folder.parent, library, f"{model.name}_stream", sounds)
    for sound, answers, answer in zip(sounds, each, predict(model, *map(wav, sounds)), strict=True):
        sums = np.cumsum([np.abs(part).mean() for part in sound.reshape(-1, WINDOW)])
        np.testing.assert_allclose([one["y"].item() for one in answers], sums, rtol=1e-5)
        np.testing.assert_allclose(np.ravel(answer["outputs"]["y_row"]), sums, rtol=1e-5)


def tones(path: Path, samples: Any = "t", *, rank: int = 2, frames: int = 0) -> Path:
    """Which of three tones a sound has: the magnitudes of its products with them, [n, 3], or [n, frames, 3]."""
    time = np.arange(2000) / RATE
    waves = np.stack([np.cos(2 * np.pi * hertz * time) for hertz in (400, 800, 1600)], 1)
    shape = {1: ["t"], 2: ["n", samples], 3: ["n", 1, samples]}[rank]
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["rows"]),
        helper.make_node("MatMul", ["rows", "waves"], ["products"]),
        helper.make_node("Abs", ["products"], ["sizes"]),
        helper.make_node("Mul", ["sizes", "scale"], ["logits"]),
    ]
    constants = [constant("flat", [-1, 2000], np.int64), constant("waves", waves), constant("scale", 0.02)]
    return saved(path, nodes, [value("x", *shape)], [value("logits", "n", 3)], constants)


def tone(hertz: float, seconds: float, rate: int = RATE) -> np.ndarray:
    return 0.5 * np.cos(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)


def best(answer: Any) -> tuple[str, float]:
    first = answer["predictions"][0]
    return first["label"], first["score"]


def test_outputs_of_windows_are_those_of_the_sound_alone(made: Make, tmp_path: Path) -> None:
    model = made(tones(tmp_path / "net.onnx", 2000), pre=f"pcm:{RATE}", post="outputs")
    sounds = [tone(400, 0.2), tone(400, 2), tone(800, 0.6)]
    for sound, answer in zip(sounds, predict(model, *map(wav, sounds)), strict=True):
        assert np.shape(answer["outputs"]["logits"]) == (-(-len(sound) // 2000), 3)


def test_a_value_of_windows_is_their_mean(made: Make, tmp_path: Path) -> None:
    file = tones(tmp_path / "net.onnx", 2000)
    model = made(file, pre=f"pcm:{RATE}", post="value")
    (answer,) = predict(model, wav(tone(400, 0.5)))
    assert [each["value"] for each in answer["predictions"]] == pytest.approx([10, 0, 0], abs=0.1)


def test_states_have_the_names_of_the_file(made: Make, tmp_path: Path) -> None:
    file = listener(tmp_path / "net.onnx")
    model_proto = onnx.load(file)
    for node in model_proto.graph.node:
        node.output[:] = ["score" if name == "stateN" else name for name in node.output]
        node.input[:] = ["score" if name == "stateN" else name for name in node.input]
    model_proto.graph.output[1].name = "score"
    onnx.save(model_proto, file)
    model = made(file, pre=f"pcm:{RATE},{WINDOW}", state="state=score")
    sound = talk(3)
    assert spoken(predict(model, wav(sound))) == [expected(sound)]


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("more", ["", " together"])
def test_labels_of_windows_are_their_mean(made: Make, tmp_path: Path, rank: int, more: str) -> None:
    model = made(tones(tmp_path / "net.onnx", 2000, rank=rank), pre=f"pcm:{RATE} hop:1000{more}", labels="low,mid,high")
    sounds = [tone(400, 1), tone(1600, 0.3), np.concatenate([tone(800, 2), tone(400, 0.5)]), tone(800, 0.25)]
    answers = predict(model, *map(wav, sounds))
    assert [best(answer)[0] for answer in answers] == ["low", "high", "mid", "mid"]
    for sound, answer in zip(sounds, answers, strict=True):
        held = (np.clip(sound, -1, 1 - 2**-15) * 32768).round() / 32768
        count = -(-len(held) // 1000)
        padded = np.zeros((count + 1) * 1000)
        padded[: len(held)] = held
        time = np.arange(2000) / RATE
        waves = np.stack([np.cos(2 * np.pi * hertz * time) for hertz in (400, 800, 1600)], 1)
        logits = np.stack([np.abs(padded[i * 1000 : i * 1000 + 2000] @ waves) * 0.02 for i in range(count)])
        mean = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).mean(0)
        scores = {each["label"]: each["score"] for each in answer["predictions"]}
        assert [scores[name] for name in ("low", "mid", "high")] == pytest.approx(mean, abs=1e-5)


def test_a_sound_of_some_seconds_is_cut_or_padded(made: Make, tmp_path: Path) -> None:
    model = made(tones(tmp_path / "net.onnx"), pre=f"pcm:{RATE} seconds:0.25", labels="low,mid,high", max_batch_size=4)
    sounds = [tone(400, 0.25), tone(1600, 3), tone(800, 0.1)]
    assert [best(answer)[0] for answer in predict(model, *map(wav, sounds))] == ["low", "high", "mid"]


def test_what_a_vector_of_windows_is(made: Make, tmp_path: Path) -> None:
    model = made(tones(tmp_path / "net.onnx", 2000), pre=f"pcm:{RATE}", post="embed unscaled")
    (one,) = predict(model, wav(tone(400, 0.25)))
    assert np.argmax(one["outputs"]["embedding"]) == 0 and one["outputs"]["embedding"][0] == pytest.approx(10, abs=0.1)


def player(path: Path) -> Path:
    """Says of windows [n, 2000, 1] what the music of the cases of NoteEvents says: onsets and frames [n, 40, 20], from
    the number of the window that its samples have."""
    made = music(1, 200, 20, 15)
    windows = {name: made[name][0].reshape(5, 40, 20) for name in ("onsets", "frames")}
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["greatest"], axes=[1, 2], keepdims=0),
        helper.make_node("Mul", ["greatest", "ten"], ["tenths"]),
        helper.make_node("Round", ["tenths"], ["whole"]),
        helper.make_node("Clip", ["whole", "zero", "four"], ["held"]),
        helper.make_node("Cast", ["held"], ["number"], to=TensorProto.INT64),
        helper.make_node("Gather", ["all_onsets", "number"], ["onsets"], axis=0),
        helper.make_node("Gather", ["all_frames", "number"], ["frames"], axis=0),
    ]
    constants = [constant("ten", 10), constant("zero", 0), constant("four", 4)]
    constants += [constant(f"all_{name}", array) for name, array in windows.items()]
    outputs = [value("frames", "n", 40, 20), value("onsets", "n", 40, 20)]
    return saved(path, nodes, [value("x", "n", 2000, 1)], outputs, constants)


def test_frames_of_a_stream_are_those_of_the_file_joined(made: Make, library: Path, tmp_path: Path) -> None:
    pre = f"pcm:{RATE} hop:1500 lead:250 trim:5"
    model = made(player(tmp_path / "net.onnx"), pre=pre, post="notes onsets:onsets frames:frames")
    sound = np.repeat([0.1, 0.3, 0.2, 0.4], 1500)
    (answers,) = streamed(model.folder.parent, library, f"{model.name}_stream", [sound], 1500, 1)
    music_of = music(1, 200, 20, 15)["frames"][0].reshape(5, 40, 20)
    said = [one["frames"] for one in answers if one["windows"][0]]
    assert [one.shape for one in said] == [(30, 20)] * 4
    places = [round(10 * max(sound[max(0, 1500 * i - 250) : 1500 * i + 1750])) for i in range(4)]
    np.testing.assert_allclose(said, [music_of[place][5:35] for place in places], atol=1e-6)
    assert "Frames are those of the file: 5 at both ends" in (model.folder / "README.md").read_text()


def test_notes_of_joined_windows(made: Make, tmp_path: Path) -> None:
    from opgate.ops_build.ops.note_events.reference import reference

    post = "notes onsets:onsets frames:frames shortest:5"
    model = made(player(tmp_path / "net.onnx"), pre=f"pcm:{RATE} hop:1000", post=post)
    sound = np.zeros(5000)
    sound[:5000:1000] = (0, 0.1, 0.2, 0.3, 0.4)
    pulses = np.repeat([0, 0.1, 0.2, 0.3, 0.4], 1000)
    (answer,) = predict(model, wav(pulses))
    told = music(1, 200, 20, 15)
    numbers = [round(10 * max(pulses[i * 1000 : i * 1000 + 2000])) for i in range(5)]
    joined = {name: told[name].reshape(5, 40, 20)[numbers].reshape(1, 200, 20) for name in ("onsets", "frames")}
    begin, end, pitch, amplitude, count = reference(
        joined["onsets"], joined["frames"], np.array([200]), max_notes=2000, onset_threshold=0.5, frame_threshold=0.3,
        min_frames=5, tolerance=11, infer_onsets=True, without_onsets=True,
    )  # fmt: skip

    def seconds(frame: int) -> float:
        return (frame // 40 * 1000 + frame % 40 * 50) / RATE

    assert count[0] > 5
    notes = answer["predictions"]
    assert [(each["pitch"], each["score"]) for each in notes] == [
        (pitch[0, i], pytest.approx(amplitude[0, i], abs=1e-5)) for i in range(count[0])
    ]
    for i, each in enumerate(notes):
        assert (each["start"], each["end"]) == pytest.approx((seconds(begin[0, i]), seconds(end[0, i])), abs=1e-5)
    names = {each["note"] for each in notes}
    assert all(name.rstrip("0123456789-").rstrip("#") in "CDEFGAB" for name in names)


CHARACTERS = {"<pad>": 0, "<s>": 1, "|": 2, "a": 3, "b": 4, "c": 5}


def writer(path: Path) -> Path:
    """One step for 100 samples [n, t]: the class is ten times their mean, of six."""
    nodes = [
        helper.make_node("Reshape", ["x", "steps"], ["each"]),
        helper.make_node("ReduceMean", ["each"], ["mean"], axes=[2], keepdims=1),
        helper.make_node("Mul", ["mean", "ten"], ["place"]),
        helper.make_node("Sub", ["place", "classes"], ["far"]),
        helper.make_node("Mul", ["far", "far"], ["squares"]),
        helper.make_node("Mul", ["squares", "scale"], ["logits"]),
    ]
    constants = [constant("steps", [0, -1, 100], np.int64), constant("ten", 10), constant("scale", -20)]
    constants.append(constant("classes", np.arange(6)[None, None]))
    return saved(path, nodes, [value("x", "n", "t")], [value("logits", "n", "steps", 6)], constants)


@pytest.mark.parametrize("form", ["json", "txt", "beside"])
def test_words_of_a_sound_have_times(made: Make, tmp_path: Path, form: str) -> None:
    name = {"json": "characters.json", "txt": "characters.txt", "beside": "vocab.json"}[form]
    text = "\n".join(CHARACTERS) if form == "txt" else json.dumps(CHARACTERS)
    (tmp_path / name).write_text(text)
    post = "ctc" if form == "beside" else f"ctc:{tmp_path / name}"
    model = made(writer(tmp_path / "net.onnx"), pre=f"pcm:{RATE} seconds:0.25", post=post)
    spelled = [0, 3, 3, 0, 4, 2, 2, 1, 5, 0, 5, 5, 2, 4]
    samples = np.repeat(np.array(spelled) / 10, 100)
    (answer,) = predict(model, wav(samples))
    said = [(each["text"], each["start"], each["end"]) for each in answer["predictions"]]
    length = 100 / RATE  # of a step
    expected_words = [("ab", 1, 5), ("cc", 8, 12), ("b", 13, 14)]
    assert said == [
        (word, pytest.approx(begin * length), pytest.approx(end * length)) for word, begin, end in expected_words
    ]
    assert all(0.9 < each["score"] <= 1 for each in answer["predictions"])
    assert "called '<pad>'" in model.report
    (silence,) = predict(model, wav(np.zeros(1000)))
    assert silence["predictions"] == []


def test_a_short_sound_has_silence_behind_it(made: Make, tmp_path: Path) -> None:
    """A network whose first convolution needs 400 samples."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["channel"]),
        helper.make_node("Conv", ["channel", "weights"], ["y"], strides=[100]),
        helper.make_node("ReduceMax", ["y"], ["greatest"], axes=[1, 2], keepdims=0),
        helper.make_node("Unsqueeze", ["greatest", "axis"], ["value"]),
    ]
    constants = [constant("axis", [1], np.int64), constant("weights", np.ones((1, 1, 400)))]
    file = saved(tmp_path / "net.onnx", nodes, [value("x", "n", "t")], [value("value", "n", 1)], constants)
    model = made(file, pre=f"pcm:{RATE}", post="value")
    assert "shortest sound" in model.report
    for samples in (0, 1, 50, 500):
        (answer,) = predict(model, wav(np.full(samples, 0.25)))
        assert answer["predictions"] == [{"value": pytest.approx(0.25 * min(samples, 400), abs=1e-4)}]


def test_sounds_have_a_loudness(made: Make, tmp_path: Path) -> None:
    """A tone of 997 Hz at full scale has -3.01 LUFS, as ITU-R BS.1770 says."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    file = saved(tmp_path / "net.onnx", nodes, [value("x", "n", "t")], [value("y", "n", "t")])
    model = made(file, pre="pcm:48000 lufs:-23", post="outputs")
    assert "lufs:-23: computed of all of a sound" in model.report
    sound = 0.05 * np.sin(2 * np.pi * 997 * np.arange(96_000) / 48_000)
    (answer,) = heard(model, sound, rate=48_000)
    assert 20 * np.log10(np.abs(answer["y"]).max()) == pytest.approx(-23 + 3.01, abs=0.02)
    (silence,) = heard(model, np.zeros(30_000), rate=48_000)
    assert not silence["y"].any()


def test_decibels_below_the_greatest(made: Make, tmp_path: Path) -> None:
    """librosa.power_to_db(..., top_db=80), of each file alone."""
    model = made(passing(tmp_path / "net.onnx", "n", 128, "t"), pre="log-mel:librosa top-db:80 rate:16000")
    quiet = np.concatenate([spoken_sound(0.4, 1), np.zeros(9000), spoken_sound(0.2, 2) / 500])
    for sound in (quiet, spoken_sound(0.5, 3)):
        (found,) = heard(model, sound)
        decibels = _log_mel(sound, n_fft=2048, pad="zero", log="db", hop_length=512, n_mels=128).T
        apart = np.abs(found["y"] - np.maximum(decibels, decibels.max() - 80))
        assert apart.max() < 0.2 and apart.mean() < 1e-3  # single precision, and the logarithm of little
        assert (found["y"] == found["y"].min()).sum() > 100 or sound is not quiet


@pytest.mark.parametrize("word", ["rms:-20", "peak", "standard"])
def test_sounds_are_as_loud_as_said(made: Make, tmp_path: Path, word: str) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    file = saved(tmp_path / "net.onnx", nodes, [value("x", "n", "t")], [value("y", "n", "t")])
    model = made(file, pre=f"pcm:{RATE} {word}", post="outputs")
    for sound in (talk(0.5), talk(0.7, 1) / 16, np.zeros(300)):
        (answer,) = predict(model, wav(sound))
        y = np.array(answer["outputs"]["y"])
        found = {"rms:-20": np.sqrt((y**2).mean()), "peak": np.abs(y).max(), "standard": y.std()}[word]
        assert found == pytest.approx({"rms:-20": 0.1, "peak": 1, "standard": 1}[word] if sound.any() else 0, abs=1e-3)


def test_characters_of_a_reader_must_be_known(library: Path, tmp_path: Path) -> None:
    file = writer(tmp_path / "net.onnx")
    (tmp_path / "five.txt").write_text("a\nb\nc\nd\ne")
    report = "\n".join(
        attach(
            Wish(file, f"pcm:{RATE} seconds:0.25", f"ctc:{tmp_path / 'five.txt'}", libraries=(library,)), "m"
        ).report.lines()
    )
    assert "behind the characters" in report
    (tmp_path / "six.txt").write_text("a\nb\nc\nd\ne\nf")
    for post, message in (
        ("ctc", "which characters does it write"),
        (f"ctc:{tmp_path / 'six.txt'}", "which class is the blank"),
        (f"ctc:{tmp_path / 'five.txt'} blank:2", "expected 6 characters, one for each class, got 5"),
    ):
        with pytest.raises(AttachError, match=message):
            attach(Wish(file, f"pcm:{RATE} seconds:0.25", post, libraries=(library,)), "m")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"pre": f"pcm:{RATE},{WINDOW}"}, "expected one input for samples, got x f32.*--state state=stateN"),
        ({"pre": f"pcm:{RATE}", "state": "state=stateN"}, "--state goes with a window"),
        ({"pre": f"pcm:{RATE},{WINDOW}", "state": "state=next"}, "expected input=output, such as state=stateN, got 'state=next'"),
        ({"pre": f"pmc:{RATE}"}, "what is 'pmc:8000'. Did you mean 'pcm:8000'.*takes no picture"),
        ({"pre": f"pcm:{RATE},{WINDOW}", "state": "state=stateN,state=p"}, "an output that another pair has"),
        ({"pre": "pcm:44", "state": "state=stateN"}, "expected pcm:1000"),
        ({"pre": "pcm:8000,a"}, "expected pcm:16000 or 16000,512"),
        ({"pre": f"pcm:{RATE},{WINDOW} hops:3"}, "what is 'hops:3'. Did you mean 'hop:3'"),
        ({"pre": f"pcm:{RATE},{WINDOW} hop:201", "state": "state=stateN"}, "would leave samples out"),
        ({"pre": f"pcm:{RATE},{WINDOW} together", "state": "state=stateN"}, "together: the windows run one after the other"),
        ({"pre": f"pcm:{RATE},{WINDOW}", "state": "state=stateN", "post": "yolov8"}, "yolov8 doesn't go with"),
        ({"pre": f"pcm:{RATE},{WINDOW}", "state": "state=stateN", "post": "notes"}, "notes needs onsets and frames"),
    ],
)  # fmt: skip
def test_what_is_said_wrongly(library: Path, tmp_path: Path, said: dict[str, str], message: str) -> None:
    with pytest.raises(AttachError, match=message):
        attach(Wish(listener(tmp_path / "net.onnx"), libraries=(library,), **said), "model")


def passing(path: Path, *shape: Any, lengths: bool = False) -> Path:
    """Gives its features back as y."""
    inputs = [value("features", *shape)]
    nodes = [helper.make_node("Identity", ["features"], ["y"])]
    outputs = [value("y", *shape)]
    if lengths:
        inputs.append(value("length", shape[0], number=TensorProto.INT64))
        nodes.append(helper.make_node("Identity", ["length"], ["count"]))
        outputs.append(value("count", shape[0], number=TensorProto.INT64))
    return saved(path, nodes, inputs, outputs)


def heard(model: Model, *sounds: np.ndarray, rate: int = 16000) -> list[dict[str, np.ndarray]]:
    """What the model says of each sound, all of them together."""
    answers = predict(model, *(wav(sound, rate) for sound in sounds))
    return [{name: np.array(array) for name, array in answer["outputs"].items()} for answer in answers]


def spoken_sound(seconds: float, seed: int, rate: int = 16000) -> np.ndarray:
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate)) / rate
    sound = 0.3 * np.sin(2 * np.pi * (150 + 40 * np.sin(5 * time)) * time) + 0.05 * rng.standard_normal(len(time))
    return (np.clip(sound, -1, 0.999) * 32768).round() / 32768


def test_features_of_whisper(made: Make, tmp_path: Path) -> None:
    """As its makers define them: the logarithm to the base 10 of 80 bands, held to 8 below the greatest."""
    from opgate.ops_build.ops.log_mel_spectrogram.reference import reference

    model = made(passing(tmp_path / "net.onnx", "n", 80, 3000), pre="log-mel:whisper")
    sounds = [spoken_sound(seconds, seed) for seed, seconds in enumerate((3.3, 31))]
    for sound, found in zip(sounds, heard(model, *sounds), strict=True):
        padded = np.zeros((1, 480_000), np.float32)
        padded[0, : len(sound)] = sound[:480_000]
        mel = reference(padded, None, **WHISPER)[0][:, :, :-1]
        expected_mel = (np.maximum(mel, mel.max() - 8) + 4) / 4
        np.testing.assert_allclose(found["y"], expected_mel[0], atol=2e-4)


WHISPER: dict[str, Any] = {
    "sample_rate": 16000, "n_fft": 400, "win_length": 0, "hop_length": 160, "n_mels": 80, "f_min": 0.0, "f_max": 0.0,
    "mel_scale": "slaney", "norm": "slaney", "center": 1, "pad": "reflect", "log": "log10", "floor": 1e-10,
    "guard": "clamp", "power": 2, "preemphasis": 0.0, "window": "hann", "periodic": 1,
}  # fmt: skip


def test_features_of_nemo_have_lengths(made: Make, tmp_path: Path) -> None:
    """Each band of a row has a mean of 0 and a deviation of 1 over its own frames, also beside a longer row."""
    from opgate.ops_build.ops.log_mel_spectrogram.reference import reference

    model = made(passing(tmp_path / "net.onnx", "n", 80, "t", lengths=True), pre="log-mel:nemo")
    sounds = [spoken_sound(seconds, seed) for seed, seconds in enumerate((1.0, 2.5))]
    settings = WHISPER | {
        "n_fft": 512, "win_length": 400, "pad": "zero", "log": "ln", "floor": 2.0**-24, "guard": "add",
        "preemphasis": 0.97, "periodic": 0,
    }  # fmt: skip
    for sound, found in zip(sounds, heard(model, *sounds), strict=True):
        mel = reference(sound[None].astype(np.float32), None, **settings)[0][0]
        expected_mel = (mel - mel.mean(1, keepdims=True)) / (mel.std(1, ddof=1, keepdims=True) + 1e-5)
        count = int(np.ravel(found["count"])[0])
        assert count == mel.shape[1]
        np.testing.assert_allclose(found["y"][:, :count], expected_mel, atol=5e-3)
        assert not found["y"][:, count:].any()


@pytest.mark.parametrize("shape", [("n", "t", 80), ("n", 1, 80, "t"), ("n", 120, 80)])
def test_filter_banks_of_kaldi(made: Make, tmp_path: Path, shape: tuple[Any, ...]) -> None:
    knf = pytest.importorskip("kaldi_native_fbank")
    model = made(passing(tmp_path / "net.onnx", *shape), pre="fbank:kaldi")
    sound = spoken_sound(1.1, 3)
    options = knf.FbankOptions()
    options.frame_opts.dither = 0
    options.mel_opts.num_bins = 80
    fbank = knf.OnlineFbank(options)
    fbank.accept_waveform(16000, (sound * 32768).tolist())
    fbank.input_finished()
    expected_bands = np.stack([fbank.get_frame(i) for i in range(fbank.num_frames_ready)])
    (found,) = heard(model, sound)
    y = found["y"][0].T if len(shape) == 4 else found["y"]
    np.testing.assert_allclose(y[: len(expected_bands)], expected_bands, atol=5e-3)
    assert len(y) == (120 if 120 in shape else len(expected_bands)) and not y[len(expected_bands) :].any()


def test_cepstra_of_kaldi(made: Make, tmp_path: Path) -> None:
    knf = pytest.importorskip("kaldi_native_fbank")
    model = made(passing(tmp_path / "net.onnx", "n", "t", 13), pre="mfcc:kaldi")
    sound = spoken_sound(1.1, 3)
    options = knf.MfccOptions()
    options.frame_opts.dither = 0
    options.use_energy = False
    mfcc = knf.OnlineMfcc(options)
    mfcc.accept_waveform(16000, (sound * 32768).tolist())
    mfcc.input_finished()
    expected_cepstra = np.stack([mfcc.get_frame(i) for i in range(mfcc.num_frames_ready)])
    (found,) = heard(model, sound)
    np.testing.assert_allclose(found["y"], expected_cepstra, atol=2e-2)


@pytest.mark.parametrize(("words", "late"), [("hop:1000", 1), ("hop:700 lead:300", 2), ("hop:2000 lead:500", 0)])
def test_windows_that_overlap_come_in_pieces(made: Make, library: Path, tmp_path: Path, words: str, late: int) -> None:
    """The answers of a stream are those of the file: a window ends some requests behind the one that begins it."""
    model = made(tones(tmp_path / "net.onnx", 2000), pre=f"pcm:{RATE} gain:3 {words}", post="outputs")
    assert "for the pieces of a file of noise it gives what the file gives, bit for bit" in model.report
    hop = int(words.partition(":")[2].split()[0])
    sounds = [talk(seconds, seed) for seed, seconds in enumerate((1.5, 0.1, 0.7))]
    each = streamed(model.folder.parent, library, f"{model.name}_stream", sounds, hop, late)
    for answer, said in zip(predict(model, *map(wav, sounds)), each, strict=True):
        if late:
            assert [int(one["windows"][0]) for one in said] == [int(i >= late) for i in range(len(said))]
        logits = np.stack([one["logits"] for one in said[late:]])
        whole = np.array(answer["outputs"]["logits"])
        np.testing.assert_allclose(logits, whole[: len(logits)], atol=1e-5)
        assert len(logits) >= len(whole) - 1 and np.abs(whole).max() > 0.5


@pytest.mark.parametrize("more", ["", " together"])
def test_windows_that_the_sound_fills_count_alone(made: Make, library: Path, tmp_path: Path, more: str) -> None:
    model = made(
        tones(tmp_path / "net.onnx", 2000), pre=f"pcm:{RATE} hop:500 lead:100 full-windows{more}", post="outputs"
    )
    sounds = [talk(count / RATE, seed) for seed, count in enumerate((3899, 3900, 1900, 1899, 300, 12_000))]
    answers = [answer["outputs"] for answer in predict(model, *map(wav, sounds))]
    counts = [int(np.ravel(answer["count"])[0]) for answer in answers]
    assert counts == [4, 5, 1, 1, 1, 21]
    plain = made(tones(tmp_path / "net.onnx", 2000), "plain", pre=f"pcm:{RATE} hop:500 lead:100", post="outputs")
    for count, answer, whole in zip(counts, answers, predict(plain, *map(wav, sounds)), strict=True):
        np.testing.assert_allclose(answer["logits"][:count], whole["outputs"]["logits"][:count], atol=1e-5)
    (said,) = streamed(model.folder.parent, library, "model_stream", sounds[1:2], 500)
    logits = [one["logits"] for one in said if one["windows"][0]]
    np.testing.assert_allclose(logits[:5], answers[1]["logits"][:5], atol=1e-5)
    assert "requests of zeros" not in (model.folder / "README.md").read_text()


def streamer(path: Path, bands: int, frames: int | None) -> Path:
    """Gives the features [n, frames, bands] of a window back as y, and counts windows [n, 1] in an integer state."""
    nodes = [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("Add", ["seen", "one"], ["seenN"]),
        helper.make_node("Cast", ["seenN"], ["number"], to=_FLOAT),
    ]
    inputs = [value("x", "n", frames or "t", bands), value("seen", "n", 1, number=TensorProto.INT64)]
    outputs = [value("y", "n", frames or "t", bands), value("number", "n", 1)]
    outputs.append(value("seenN", "n", 1, number=TensorProto.INT64))
    return saved(path, nodes, inputs, outputs, [constant("one", [[1]], np.int64)])


def _kaldi(sound: np.ndarray, *, icefall: bool) -> np.ndarray:
    knf = pytest.importorskip("kaldi_native_fbank")
    options = knf.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.snip_edges = not icefall
    options.mel_opts.num_bins = 80
    options.mel_opts.high_freq = -400 if icefall else 0
    fbank = knf.OnlineFbank(options)
    fbank.accept_waveform(16000, (sound * (1 if icefall else 32768)).tolist())
    fbank.input_finished()
    return np.stack([fbank.get_frame(i) for i in range(fbank.num_frames_ready)])


def _log_mel(sound: np.ndarray, **settings: Any) -> np.ndarray:
    from opgate.ops_build.ops.log_mel_spectrogram.reference import reference

    return reference(sound[None].astype(np.float32), None, **{**WHISPER, **settings})[0][0].T


STREAMED = {
    "fbank:kaldi": lambda sound: _kaldi(sound, icefall=False),
    "fbank:icefall": lambda sound: _kaldi(sound, icefall=True),
    "log-mel:whisper unnormalized": _log_mel,
    "log-mel:nemo unnormalized": lambda sound: _log_mel(
        sound, n_fft=512, win_length=400, pad="zero", log="ln", floor=2.0**-24, guard="add", preemphasis=0.97,
        periodic=0,
    ),
    "log-mel:librosa rate:16000 bands:80": lambda sound: _log_mel(
        sound, n_fft=2048, pad="zero", log="db", hop_length=512
    ),
}  # fmt: skip


@pytest.mark.parametrize("pre", STREAMED)
def test_frames_of_a_stream_are_those_of_the_sound_as_a_whole(
    made: Make, library: Path, tmp_path: Path, pre: str
) -> None:
    """Each request has the samples of 7 frames, and gets a window of 10, as a recogniser of speech takes them."""
    model = made(streamer(tmp_path / "net.onnx", 80, 10), pre=f"{pre} hop:7", state="seen=seenN", post="outputs")
    assert "for the pieces of a file of noise it gives what the file gives, bit for bit" in model.report
    step = 512 if "librosa" in pre else 160
    sounds = [spoken_sound(seconds, seed) for seed, seconds in enumerate((1.3, 0.7))]
    late = int(model.report.split(" requests late")[0].rpartition(" ")[2]) if " requests late" in model.report else 0
    each = streamed(model.folder.parent, library, f"{model.name}_stream", sounds, 7 * step, late)
    for sound, answer, said in zip(sounds, heard(model, *sounds), each, strict=True):
        windows = np.stack([one["y"] for one in said[late:]])
        assert [one["number"].tolist() for one in said[late:]] == [[i + 1] for i in range(len(windows))]
        np.testing.assert_allclose(windows, answer["y"][: len(windows)], atol=1e-6)
        padded = np.pad(sound, (0, 40 * step))
        expected_frames = STREAMED[pre](padded)
        apart = np.abs(windows - np.stack([expected_frames[7 * i : 7 * i + 10] for i in range(len(windows))]))
        assert apart.max() < 0.05 and apart.mean() < 1e-3  # single precision, and the logarithm of little


def test_windows_of_frames_run_together(made: Make, tmp_path: Path) -> None:
    file = passing(tmp_path / "net.onnx", "n", 80, 10)
    sounds = [spoken_sound(seconds, seed) for seed, seconds in enumerate((0.8, 0.3))]
    alone, together = (
        heard(made(file, pre=f"fbank:kaldi hop:7{more}", post="outputs"), *sounds) for more in ("", " together")
    )
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one["y"], other["y"], atol=1e-6)


@pytest.mark.parametrize(
    ("pre", "why"),
    [
        (f"pcm:{RATE},2000 hop:1000 standard", "standard: computed of all of a sound, which no piece of it knows"),
        (f"pcm:{RATE},2000 hop:1000 rms:-20", "rms:-20: computed of all of a sound"),
        (f"pcm:{RATE},2000", "no window needs what was before it"),
        (f"pcm:{RATE} seconds:0.25", "the network takes all of a sound at once"),
    ],
)
def test_what_has_no_stream_says_why(library: Path, tmp_path: Path, pre: str, why: str) -> None:
    made = attach(Wish(tones(tmp_path / "net.onnx"), pre, libraries=(library,)), "model")
    assert why in "\n".join(made.report.lines()) and not made.beside


@pytest.mark.parametrize(
    ("pre", "why"),
    [
        ("log-mel:whisper", "whisper: computed of all of a sound"),
        ("log-mel:nemo", "nemo: computed of all of a sound"),
        ("fbank:kaldi cmvn", "cmvn: computed of all of a sound"),
        ("log-mel:librosa bands:80 top-db:80", "top-db:80: computed of all of a sound"),
        ("log-mel:whisper unnormalized frames:10 hop:1", "200 samples are turned around before a sound, and a hop"),
    ],
)
def test_features_of_the_whole_have_no_stream(library: Path, tmp_path: Path, pre: str, why: str) -> None:
    made = attach(Wish(passing(tmp_path / "net.onnx", "n", 80, "t"), pre, libraries=(library,)), "model")
    assert why in "\n".join(made.report.lines()) and not made.beside


@pytest.mark.parametrize(
    ("pre", "message"),
    [
        ("log-mel:nemo hop:7", "nemo: computed of all frames of a sound"),
        ("fbank:kaldi cmn", "cmn: computed of all frames"),
        ("fbank:kaldi frames:9", "windows of frames:9, and net.onnx takes 10"),
        ("fbank:kaldi hop:11", "windows of frames:10 with a hop:11 would leave frames out"),
        ("fbank:kaldi seconds:3", "windows of frames and seconds"),
        ("fbank:kaldi step:900 hop:10", "leave samples out"),
        ("fbank:kaldi lead:100", "the lead goes with windows of samples"),
    ],
)
def test_windows_of_frames_that_are_said_wrongly(library: Path, tmp_path: Path, pre: str, message: str) -> None:
    wish = Wish(streamer(tmp_path / "net.onnx", 80, 10), pre, state="seen=seenN", libraries=(library,))
    with pytest.raises(AttachError, match=message):
        attach(wish, "model")


@pytest.mark.parametrize(
    ("pre", "message"),
    [
        ("log-mel:whisper low:9000 high:100", "expected low: below high:, got low:9000 and high:100 Hz"),
        ("log-mel:whisper low:8000", "got low:8000 and high:8000 Hz"),
        ("log-mel:nemo high:9000", "high:9000: sounds with a rate of 16000 have no frequencies above 8000 Hz"),
        ("fbank:icefall low:7700", "got low:7700 and high:7600 Hz"),
        ("fbank:kaldi high:8001", "high:8001: sounds with a rate of 16000"),
        ("log-mel:whisper win:512 fft:256", "win:512 is longer than the transform, fft:256"),
        ("log-mel:nemo fft:256", "win:400 is longer than the transform, fft:256"),
        ("fbank:kaldi win:1", "expected win:2 or more samples, got win:1"),
        ("fbank:kaldi bands:0", "expected bands:1 to bands:4096, got 'bands:0'"),
        ("log-mel:whisper seconds:0.01", "seconds:0.01 are 160 samples, and frames of fft:400 need more than 200"),
        ("log-mel:whisper seconds:5 longest:3", "longest:3 refuses what seconds:5 would cut"),
        ("log-mel:whisper peak lufs:-23", "peak and lufs:-23 say how loud the samples are"),
        ("log-mel:whisper rate:3000 lufs:-23", "lufs:-23 needs a rate of 4000 or more, got 3000"),
    ],
)
def test_words_of_features_that_contradict_each_other(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pre: str, message: str
) -> None:
    """They are refused before anything runs."""
    monkeypatch.setattr("opgate.attach.model.network_file.NetworkFile.open", None)
    file = passing(tmp_path / "net.onnx", "n", 80, "t")
    with pytest.raises(AttachError, match=message):
        attach(Wish(file, pre, libraries=(library,)), "model")


@pytest.mark.parametrize(
    ("pre", "message"),
    [
        ("pcm:500000", "expected pcm:1000 to pcm:384000 samples a second, got pcm:500000"),
        ("pcm:8000 seconds:0.25 longest:0.1", "longest:0.1 refuses what seconds:0.25 would cut"),
        ("pcm:8000 seconds:0.25 together", "together goes with a window"),
        ("pcm:8000 context:3000", "a context:3000 leaves no window of the 2000 that the network takes"),
        ("pcm:8000 lead:2000", "lead:2000 leaves no sound in the first window, of 2000 samples"),
        ("pcm:8000 trim:1", "trim: goes with --post notes.* not with classify"),
        ("pcm:8000 rms:-20 lufs:-23", "rms:-20 and lufs:-23 say how loud"),
    ],
)
def test_words_of_samples_that_contradict_each_other(library: Path, tmp_path: Path, pre: str, message: str) -> None:
    file = tones(tmp_path / "net.onnx", None if "seconds" in pre else 2000)
    with pytest.raises(AttachError, match=message):
        attach(Wish(file, pre, libraries=(library,)), "model")


def test_a_network_that_fails_on_other_lengths_is_named(library: Path, tmp_path: Path) -> None:
    with pytest.raises(AttachError, match=r"net.onnx fails on a sound of 16077 samples: .*seconds:2, for example"):
        attach(Wish(tones(tmp_path / "net.onnx"), f"pcm:{RATE}", libraries=(library,)), "model")


def test_seconds_may_be_more_than_the_usual_longest(library: Path, tmp_path: Path) -> None:
    made = attach(
        Wish(passing(tmp_path / "net.onnx", "n", "t", 80), "fbank:kaldi seconds:700", libraries=(library,)), "model"
    )
    assert "longer than 700 seconds" in made.config


def test_a_stream_that_is_no_more_goes(made: Make, tmp_path: Path) -> None:
    file = tones(tmp_path / "net.onnx", 2000)
    beside = made(file, pre=f"pcm:{RATE} hop:1000", post="outputs").folder.with_name("model_stream")
    assert (beside / "1" / "model.onnx").exists()
    made(file, pre=f"pcm:{RATE}", post="outputs")
    assert not beside.exists()


def test_a_window_has_its_full_length(made: Make, library: Path, tmp_path: Path) -> None:
    """A network with a length beside its frames gets that of a window."""
    file = passing(tmp_path / "net.onnx", "n", 80, 10, lengths=True)
    model = made(file, pre="fbank:kaldi hop:5", post="outputs")
    sound = spoken_sound(0.5, 1)
    (answer,) = heard(model, sound)
    assert set(answer["network/count"].ravel()) == {10} and answer["y"].shape[1:] == (80, 10)
    (said,) = streamed(model.folder.parent, library, f"{model.name}_stream", [sound], 800, 2)
    for i, one in enumerate(said[2:]):
        np.testing.assert_allclose(one["y"], answer["y"][i], atol=1e-6)


def test_a_network_of_any_number_of_frames_must_be_told(library: Path, tmp_path: Path) -> None:
    wish = Wish(streamer(tmp_path / "net.onnx", 80, None), "fbank:kaldi", state="seen=seenN", libraries=(library,))
    with pytest.raises(AttachError, match=r"how many frames does a window have.*frames:45"):
        attach(wish, "model")


@pytest.mark.parametrize(
    ("pre", "message"),
    [
        (
            "log-mel:whispr",
            "expected log-mel:whisper or log-mel:nemo or log-mel:librosa, got 'log-mel:whispr'.* Did you mean",
        ),
        ("log-mel:whisper pcm:16000", "expected one of pcm:16000, log-mel:whisper"),
        (
            "log-mel:whisper hop:3",
            "whisper: computed of all frames of a sound.*unnormalized leaves a normalization out",
        ),
        ("log-mel:whisper context:3", "the context goes with windows of samples"),
        ("log-mel:nemo bands:81", r"expected an input of floats \[n, 81, frames\]"),
        ("fbank:kaldi fft:512", "fft: goes with log-mel"),
        ("log-mel:whisper top-db:80", "top-db: goes with decibels"),
        ("pcm:16000 cmvn", "the normalization is one of features"),
    ],
)
def test_features_that_are_said_wrongly(library: Path, tmp_path: Path, pre: str, message: str) -> None:
    file = passing(tmp_path / "net.onnx", "n", 80, "t")
    with pytest.raises(AttachError, match=message):
        attach(Wish(file, pre, libraries=(library,)), "model")
