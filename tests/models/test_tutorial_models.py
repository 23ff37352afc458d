"""The models of tutorials: the request in a README gets the answer that is shown there, and the picture is drawn again."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests import PROJECT
from tests.models.serving import REPOSITORY, Served

MODELS = pytest.mark.parametrize("model", ["leaky_relu", "knn"])


@MODELS
def test_the_readmes_request_gets_its_answer(model: str, library: Path) -> None:
    readme = (PROJECT / "models" / model / "README.md").read_text()
    (request,) = re.findall(r"^curl localhost:8000(\S+) -d '(.*)'$", readme, re.MULTILINE)
    (answer,) = re.findall(r"```json\n(.*?)```", readme, re.DOTALL)
    assert Served(model, library).post(request[0], content=request[1]).json() == json.loads(answer)


@MODELS
def test_the_picture_shows_what_the_served_file_gives(model: str, library: Path, tmp_path: Path) -> None:
    importlib.import_module(f"models.{model}.picture").write_picture(REPOSITORY, library, tmp_path / "drawn.png")
    (kept,) = (PROJECT / "models" / model).glob("*.png")
    drawn, shown = (_red(path) for path in (tmp_path / "drawn.png", kept))
    assert (drawn & shown).sum() > 0.95 * (drawn | shown).sum() > 500


def _red(path: Path) -> np.ndarray:
    """Returns where a picture has the colour of the results. Its texts differ with the version of Pillow."""
    return np.abs(np.asarray(Image.open(path).convert("RGB")).astype(int) - (0xC2, 0x36, 0x16)).sum(-1) < 40


def test_few_points_leave_places_empty(library: Path) -> None:
    points = {"name": "xyz", "datatype": "FP32", "shape": [1, 3], "data": [0, 0, 0]}
    request = {"inputs": [points, {**points, "name": "queries"}], "outputs": [{"name": "idx"}]}
    (idx,) = Served("knn", library).post("/v2/models/knn/infer", json=request).json()["outputs"]
    assert idx["data"] == [0, -1, -1]
