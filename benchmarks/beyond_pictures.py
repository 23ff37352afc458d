"""Networks that hear, read, tell files apart or score rows, each attached by one command: how far the served answers
agree with those of the packages' own code, and the CPU time of both.

    pip install 'opgate[real-models,test]'
    python -m benchmarks.beyond_pictures [--library build/ops/libopgate_onnxruntime.so] [--examples 8]

Prints a table. A package that is not installed has no row. Both sides have one thread. The CPU time of an example is
the least of three runs, and the table has the median over the examples: voices and music that are made here, files of
the project, lines of its documents, and rows of scikit-learn's data. The encoder of texts is made here, with random
weights: four layers of 256 numbers.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
import soundfile

from benchmarks.real_models import one_thread
from opgate.attach.attach import attach
from opgate.attach.compared.comparison import compared, graph_of
from opgate.attach.model.attached import write
from opgate.attach.model.examples import Example, files, lines, rows
from opgate.attach.model.serving import Served
from opgate.attach.model.wish import Wish
from opgate.ops_build.building.options import BuildOptions
from tests.attach.test_more_packages import melody, voice

PROJECT = Path(__file__).parents[1]
_WIDTH, _HEADS = 256, 4


@dataclass(frozen=True, slots=True)
class Row:
    """A network: its name, its file, the options of `opgate attach`, the examples, and the package's own answer."""

    name: str
    path: Path
    own: Callable[[Example], Any]
    examples: Sequence[Example]
    options: Mapping[str, str] = field(default_factory=dict)


def installed(package: str, file: str) -> Path:
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))) / file


@cache
def silero() -> Any:
    from silero_vad import load_silero_vad

    return load_silero_vad(onnx=True)


def speech(example: Example) -> list[tuple[float, float]]:
    import torch
    from silero_vad import get_speech_timestamps

    samples, _ = soundfile.read(example.path, dtype="float32")
    found = get_speech_timestamps(torch.from_numpy(samples), silero())
    return [(each["start"] / 16_000, each["end"] / 16_000) for each in found]


@cache
def magika() -> Any:
    from magika import Magika

    return Magika()


def file_type(example: Example) -> tuple[str, float]:
    assert isinstance(example.content, bytes)
    found = magika().identify_bytes(example.content)
    return str(found.prediction.dl.label), float(found.prediction.score)


@cache
def basic_pitch(path: Path) -> Any:
    from basic_pitch.inference import Model

    return Model(path)


def notes(path: Path, example: Example) -> list[dict[str, Any]]:
    from basic_pitch.inference import predict

    _, _, found = predict(example.path, basic_pitch(path))
    names = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")
    return [
        {"start": float(start), "end": float(end), "note": f"{names[pitch % 12]}{pitch // 12 - 1}"}
        for start, end, pitch, *_ in found
    ]


def networks(folder: Path, count: int) -> Iterator[Row]:
    """Yields the networks whose packages are installed."""
    if find_spec("silero_vad"):
        voices = [folder / f"voice{number}.flac" for number in range(count)]
        for number, path in enumerate(voices):
            soundfile.write(path, voice(5 + 4 * number, number), 16_000)
        file = installed("silero_vad", "data/silero_vad.onnx")
        said = {"pre": "pcm:16000,512", "state": "state=stateN"}
        yield Row("silero_vad", file, speech, [each for path in voices for each in files(path)], said)
    if find_spec("magika"):
        found = sorted(
            path for kind in ("*.py", "*.md", "*.cpp", "*.svg", "*.toml", "*.yml") for path in PROJECT.rglob(kind)
        )
        kept = [path for path in found if "build" not in path.parts and 100 < path.stat().st_size < 1 << 20]
        chosen = kept[:: max(1, len(kept) // (5 * count))]
        file = installed("magika", "models/standard_v3_3/model.onnx")
        yield Row("magika", file, file_type, [each for path in chosen for each in files(path)])
    if find_spec("basic_pitch") and find_spec("pretty_midi"):
        songs = [folder / f"song{number}.wav" for number in range(count)]
        for number, path in enumerate(songs):
            soundfile.write(path, melody(8 + 2 * number), 22_050)
        file = installed("basic_pitch", "saved_models/icassp_2022/nmp.onnx")
        said = {"pre": "pcm:22050 together", "post": "notes"}
        own: Callable[[Example], Any] = lambda example: notes(file, example)  # noqa: E731
        yield Row("basic_pitch", file, own, [each for path in songs for each in files(path)], said)
    if find_spec("tokenizers") and find_spec("torch"):
        yield encoder(folder, 5 * count)
    if find_spec("skl2onnx"):
        yield forest(folder, 5 * count)


def encoder(folder: Path, count: int) -> Row:
    """An encoder of texts with random weights, and a tokenizer that has learned from the project's documents."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    texts = [line for path in sorted((PROJECT / "docs").glob("*.md")) for line in path.read_text().splitlines() if line]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=8000, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_truncation(128)
    place = folder / "encoder"
    place.mkdir()
    tokenizer.save(str(place / "tokenizer.json"))
    (folder / "texts.txt").write_text("\n".join(texts[:: max(1, len(texts) // count)]))

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = torch.nn.LayerNorm(_WIDTH), torch.nn.LayerNorm(_WIDTH)
            self.inside, self.outside = torch.nn.Linear(_WIDTH, 3 * _WIDTH), torch.nn.Linear(_WIDTH, _WIDTH)
            self.wider, self.back = torch.nn.Linear(_WIDTH, 4 * _WIDTH), torch.nn.Linear(4 * _WIDTH, _WIDTH)

        def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
            parts = self.inside(self.before(x)).reshape(x.shape[0], -1, 3, _HEADS, _WIDTH // _HEADS)
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            scores = query @ key.transpose(-1, -2) * (_WIDTH // _HEADS) ** -0.5 + hidden[:, None, None]
            heads = (scores.softmax(-1) @ value).permute(0, 2, 1, 3)
            x = x + self.outside(heads.reshape(x.shape[0], -1, _WIDTH))
            wide = torch.nn.functional.gelu(self.wider(self.between(x)))
            result: torch.Tensor = x + self.back(wide)
            return result

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table = torch.nn.Embedding(8000, _WIDTH)
            self.layers = torch.nn.ModuleList(Layer() for _ in range(4))

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            x: torch.Tensor = self.table(input_ids)
            for layer in self.layers:
                x = layer(x, (attention_mask - 1) * 1e9)
            return x

    ids = torch.ones(2, 9, dtype=torch.long)
    axes = {name: {0: "batch", 1: "tokens"} for name in ("input_ids", "attention_mask", "hidden")}
    torch.onnx.export(
        Encoder().eval(), (ids, ids), str(place / "model.onnx"), input_names=["input_ids", "attention_mask"],
        output_names=["hidden"], dynamic_axes=axes, opset_version=17, dynamo=False,
    )  # fmt: skip
    session = onnxruntime.InferenceSession(str(place / "model.onnx"), providers=["CPUExecutionProvider"])

    def own(example: Example) -> Any:
        assert not isinstance(example.content, bytes)
        tokens = tokenizer.encode(example.content["text"])
        given = {"input_ids": np.array([tokens.ids]), "attention_mask": np.array([tokens.attention_mask])}
        vector = session.run(None, given)[0][0].mean(0)
        return vector / np.linalg.norm(vector)

    said = {"pre": str(place / "tokenizer.json"), "post": "mean-pool normalize"}
    return Row("an encoder of texts", place / "model.onnx", own, lines(folder / "texts.txt", ["text"]), said)


def forest(folder: Path, count: int) -> Row:
    """A forest of 100 trees on scikit-learn's wines."""
    from skl2onnx import to_onnx
    from sklearn.datasets import load_wine
    from sklearn.ensemble import RandomForestClassifier

    data = load_wine()
    x = data.data.astype(np.float32)
    model = RandomForestClassifier(100, random_state=0).fit(x, data.target_names[data.target])
    (folder / "wine.onnx").write_bytes(to_onnx(model, x[:1]).SerializeToString())
    names = [name.replace("/", "_") for name in data.feature_names]
    table = [",".join(names), *(",".join(map(str, row)) for row in x[:: max(1, len(x) // count)].tolist())]
    (folder / "wine.csv").write_text("\n".join(table))

    def own(example: Example) -> list[tuple[str, float]]:
        assert not isinstance(example.content, bytes)
        scores = model.predict_proba(np.array([list(example.content.values())], np.float32))[0]
        return sorted(zip(map(str, model.classes_), map(float, scores), strict=True), key=lambda each: -each[1])

    said = {"pre": f"columns:{','.join(names)}"}
    return Row("scikit-learn: a forest", folder / "wine.onnx", own, rows(folder / "wine.csv", names), said)


def measure(row: Row, folder: Path, library: Path) -> str:
    """Returns the line of the table."""
    name = row.name.replace(" ", "_").replace(":", "")
    made = attach(Wish(row.path, libraries=(library,), **row.options), name)
    write(made, folder / name, library, "opgate attach", overwrite=True)
    served = Served(folder / name, library)
    found = compared(row.own, row.examples, served, graph_of(folder / name, library))
    agreements = found.agreements
    agreed = f"{sum(each.equal for each in agreements)} of {len(agreements)}"
    if any(each.iou is not None for each in agreements):
        agreed += f", {sum(each.labels for each in agreements)} of {sum(each.theirs for each in agreements)} things"
    ours, theirs = median(found.ours) * 1000, median(found.theirs) * 1000
    options = {key: value.rpartition("/")[2][:60] for key, value in row.options.items()}
    command = " ".join(f'--{key} "{value}"' for key, value in options.items())
    batch = "one" if "max_batch_size: 1\n" in made.config else "yes"
    return (
        f"| {row.name}: {row.path.name} | `{command}` | {batch} | {agreed} | "
        f"{max(each.score for each in agreements):.4f} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, default=BuildOptions().library())
    parser.add_argument("--examples", type=int, default=8)
    arguments = parser.parse_args()
    one_thread()
    if find_spec("torch"):
        import torch

        torch.set_num_threads(1)
    print(f"onnxruntime {onnxruntime.__version__}, {arguments.examples} sounds for each, and five times as many others")
    head = ("network", "options beside --to", "batched", "examples that agree", "scores differ by")
    print(f"| {' | '.join(head)} | graph ms | package ms | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as made:
        for row in networks(Path(made), arguments.examples):
            print(measure(row, Path(made) / "models", arguments.library), flush=True)


if __name__ == "__main__":
    main()
