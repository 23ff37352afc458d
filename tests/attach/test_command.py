"""`opgate attach` at the command line."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from opgate.cli import app
from tests.attach import networks
from tests.attach.conftest import png, squares


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["attach", *map(str, arguments)])
    return result.exit_code, result.output


def test_one_command_writes_a_model(library: Path, tmp_path: Path) -> None:
    file = networks.yolov8(tmp_path / "net.onnx", fixed=True)
    status, said = run(file, "--to", tmp_path / "models" / "yolo", "--library", library)
    assert status == 0, said
    assert "found in the file" in said and "found by a run" in said and "taken as default" in said and "wrote " in said
    folder = tmp_path / "models" / "yolo"
    assert {path.name for path in folder.iterdir()} == {"1", "config.pbtxt", "labels.txt", "README.md", "report.txt"}
    assert (folder / "labels.txt").read_text() == "red\ngreen\nblue\n"
    readme = (folder / "README.md").read_text()
    assert "curl localhost:8000/predict/yolo" in readme and "opgate serve --model-repository" in readme
    assert "iou_threshold from 0 to 1, score_threshold from 0.25 to 1, top_k from 1 to 100" in readme
    assert "/yolo -F data=@picture.jpg -F iou_threshold=0.7 -F score_threshold=0.25 -F top_k=100\n" in readme
    report = (folder / "report.txt").read_text()
    assert report.splitlines()[0] in said and "bit for bit" in report
    status, said = run(file, "--to", folder, "--library", library)
    assert status == 1 and "--overwrite" in said


def test_a_detector_and_a_reader_are_one_model(library: Path, tmp_path: Path) -> None:
    detector = networks.text_map(tmp_path / "detector.onnx")
    reader = networks.lines(tmp_path / "reader.onnx", steps_first=False, channels=3)
    said = ("--read", reader, "--read-pre", "height:16 half", "--labels", "a,b,c,d,e")
    to = ("--to", tmp_path / "models" / "ocr", "--library", library)
    status, printed = run(detector, *said, "--post", "db blank:0", *to)
    assert status == 0, printed
    assert "reader: characters" in printed and {path.name for path in (tmp_path / "models").iterdir()} == {"ocr"}
    assert (tmp_path / "models" / "ocr" / "labels.txt").read_text() == "\na\nb\nc\nd\ne\n"


def test_mistakes_are_one_line(library: Path, tmp_path: Path) -> None:
    file = networks.classifier(tmp_path / "net.onnx", name="out")
    to = ("--to", tmp_path / "models" / "net", "--library", library)
    for arguments, message in [
        ((file, *to), "opgate: --post: the output 'out' [1, 3] fits classify:3"),
        ((file, *to, "--post", "classify", "--like", "a:b"), "--like goes with --examples"),
        ((file, *to, "--post", "classify", "--pre", "nonsense"), "--pre: what is 'nonsense'?"),
        ((file, *to, "--read-pre", "height:48"), "--read-pre goes with --read"),
        ((file, *to, "--turn", file), "--turn goes with --read"),
        ((file, *to, "--read", file, "--turn-pre", "height:48"), "--turn-pre goes with --turn"),
    ]:
        status, said = run(*arguments)
        assert status == 1 and message in said and said.count("\n") == 1, said
    (tmp_path / "broken.onnx").write_bytes(b"nothing")
    status, said = run(tmp_path / "broken.onnx", *to)
    assert status == 1 and "broken.onnx is no ONNX model" in said
    assert not (tmp_path / "models").exists()


def test_a_function_that_is_none_is_found_before_anything_is_written(library: Path, tmp_path: Path) -> None:
    file, to = networks.yolov8(tmp_path / "net.onnx"), tmp_path / "models" / "yolo"
    (tmp_path / "pictures").mkdir()
    said = (file, "--to", to, "--library", library, "--examples", tmp_path / "pictures")
    status, printed = run(*said, "--like", "json:loads")
    assert status == 1 and "has no file that fits" in printed and not to.exists()
    (tmp_path / "pictures" / "a.png").write_bytes(b"any")
    status, printed = run(*said, "--like", "no_such_module:f")
    assert status == 1 and "No module named" in printed and not to.exists()


def test_a_comparison_that_fails_leaves_nothing(library: Path, tmp_path: Path) -> None:
    file, to = networks.yolov8(tmp_path / "net.onnx"), tmp_path / "models" / "yolo"
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(png(squares()))
    code = (
        "def fails(data):\n    raise KeyError('cat')\n"
        "def label(data):\n    return 'red'\n"
        "def nothing(data):\n    return []\n"
    )
    (tmp_path / "own.py").write_text(code)
    said = (file, "--to", to, "--library", library, "--examples", tmp_path / "pictures")
    for name, message in (
        ("fails", "own.py:fails fails on a.png: KeyError: 'cat'"),
        ("label", "the model answers with boxes, and your function with labels or a text, for a.png"),
    ):
        status, printed = run(*said, "--like", f"{tmp_path / 'own.py'}:{name}")
        assert status == 1 and message in printed and not to.parent.exists()
    status, printed = run(*said, "--like", f"{tmp_path / 'own.py'}:nothing")
    assert status == 0 and "0 of 1 agree" in printed and (to / "comparison.html").is_file()


def test_examples_need_no_function(library: Path, tmp_path: Path) -> None:
    file, to = networks.yolov8(tmp_path / "net.onnx", fixed=True), tmp_path / "models" / "yolo"
    (tmp_path / "pictures").mkdir()
    said = (file, "--to", to, "--library", library, "--examples", tmp_path / "pictures")
    status, printed = run(*said)
    assert status == 1 and "has no file that fits" in printed and not to.exists()
    (tmp_path / "pictures" / "a.png").write_bytes(png(squares()))
    status, printed = run(*said)
    assert status == 0 and (to / "config.pbtxt").is_file() and not (to / "comparison.html").exists(), printed
