"""The keyword spotter: the served file on the committed clips, and /predict with files of sound, good and hostile."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from models.keyword_spotter.words import KEYWORDS, LABELS, TEST_VOICES, TRAIN_VOICES
from opgate.ops_build.audio.sounds import encoded, wav
from tests import PROJECT
from tests.models.serving import REPOSITORY, Served

CLIPS = sorted((PROJECT / "docs" / "examples" / "keywords").glob("*.wav"))


@pytest.fixture(scope="module")
def served(library: Path) -> Served:
    return Served("keyword_spotter", library)


def test_no_voice_is_in_both_splits() -> None:
    assert not set(TRAIN_VOICES) & set(TEST_VOICES)
    assert len(set(TRAIN_VOICES)) == len(TRAIN_VOICES)
    assert (REPOSITORY / "keyword_spotter" / "labels.txt").read_text().split() == list(LABELS)


def test_the_served_file_hears_the_words_of_unheard_voices(served: Served) -> None:
    assert len(CLIPS) == 12
    words = [clip.stem if clip.stem in KEYWORDS else "other" for clip in CLIPS]
    labels = served.run([clip.read_bytes() for clip in CLIPS])["labels"]
    assert [LABELS[label] for label in labels[:, 0]] == words


def test_a_ragged_batch_is_its_rows(served: Served) -> None:
    files = [clip.read_bytes() for clip in CLIPS]
    files = [files[0], files[1][:9044], wav(b"\0" * 40), b"bad", *files[2:]]
    files[1] = wav(files[1][44:], bits=8)
    together = served.run(files)
    assert together["status"].tolist() == [0, 0, 0, 1, *[0] * (len(files) - 4)]
    for row, file in enumerate(files):
        alone = served.run([file])
        assert np.array_equal(alone["labels"][0], together["labels"][row])
        np.testing.assert_allclose(alone["scores"][0], together["scores"][row], rtol=1e-4, atol=1e-5)


def test_the_second_after_the_first_is_not_heard(served: Served) -> None:
    clip = CLIPS[0].read_bytes()
    longer = wav(clip[44:] + b"\xff\x00" * 8000, bits=8)
    np.testing.assert_array_equal(served.run([clip])["scores"], served.run([longer])["scores"])


@pytest.mark.parametrize("media", ["audio/wav", "audio/x-wav", "audio/vnd.wave", "application/octet-stream"])
def test_predict_takes_a_wav(served: Served, media: str) -> None:
    clip = next(clip for clip in CLIPS if clip.stem == "yes")
    answer = served.predict(content=clip.read_bytes(), headers={"content-type": media})
    assert answer.status_code == 200, answer.text
    best, *others = answer.json()["predictions"]
    assert best["label"] == "yes" and best["score"] > 0.5
    assert all(0.01 <= other["score"] <= best["score"] for other in others)
    form = served.predict(files={"data": ("yes.wav", clip.read_bytes(), "audio/wav")})
    assert form.json() == answer.json()


@pytest.mark.parametrize(
    ("kind", "media"), [("FLAC", "audio/flac"), ("MP3", "audio/mpeg"), ("Vorbis", "audio/ogg"), ("Opus", "audio/ogg")]
)
def test_predict_takes_other_sounds(served: Served, kind: str, media: str) -> None:
    pytest.importorskip("soundfile")
    clip = next(clip for clip in CLIPS if clip.stem == "yes")
    samples = (np.frombuffer(clip.read_bytes()[44:], np.uint8) - 128.0) / 128
    answer = served.predict(content=encoded(kind, samples), headers={"content-type": media})
    assert answer.status_code == 200 and answer.json()["predictions"][0]["label"] == "yes"


def test_requests_at_the_same_time_get_their_own_answers(served: Served) -> None:
    headers = {"content-type": "audio/wav"}
    requests = [{"content": clip.read_bytes(), "headers": headers} for clip in CLIPS] + [
        {"content": b"bad", "headers": headers}
    ]
    *answers, refused = served.send([{"url": "/predict/keyword_spotter", **request} for request in requests])
    found = [answer.json()["predictions"][0]["label"] for answer in answers]
    assert found == [clip.stem if clip.stem in KEYWORDS else "other" for clip in CLIPS]
    assert refused.status_code == 400


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"no sound at all", "not a WAV, FLAC, MP3 or Ogg"),
        (wav(b"\0" * 99)[:80], "corrupt or truncated"),
        (wav(b"\0" * 8, kind=85, bits=8), "an unsupported kind of sound"),
        (wav(b"\0" * 8, rate=44100), "another sample rate than 16000 Hz"),
        (wav(struct.pack("<2f", 0, np.nan), kind=3, bits=32), "corrupt or truncated"),
    ],
)
def test_predict_refuses_what_is_no_such_sound(served: Served, content: bytes, text: str) -> None:
    answer = served.predict(content=content, headers={"content-type": "audio/wav"})
    assert answer.status_code == 400 and text in answer.json()["error"]


def test_predict_refuses_other_media_types(served: Served) -> None:
    answer = served.predict(content=b"x", headers={"content-type": "text/plain"})
    assert (
        answer.status_code == 415
        and "expected audio/wav, audio/flac, audio/mpeg, audio/ogg, application/octet-stream" in answer.json()["error"]
    )


def test_the_document_names_the_sound(served: Served) -> None:
    body = served.document()["requestBody"]["content"]
    assert set(body) == {
        "audio/wav",
        "audio/flac",
        "audio/mpeg",
        "audio/ogg",
        "application/octet-stream",
        "multipart/form-data",
        "application/json",
    }
