"""A model that is ready to be written, and its folder."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from opgate.attach.model import folder, graph, settings
from opgate.attach.model.nodes import Nodes, Setting
from opgate.attach.model.post import Answers
from opgate.attach.model.report import AttachError, Report
from opgate.attach.model.serving import Served
from opgate.attach.model.takes import Takes
from opgate.onnx_tools import repository
from opgate.onnx_tools.sessions import session
from opgate.ops_build.onnx.nodes import graphs_of


@dataclass(frozen=True, slots=True)
class Compared:
    """The lines of the report of a comparison, and the page with the pictures on which the answers disagree."""

    lines: Sequence[str]
    page: str


@dataclass(frozen=True, slots=True)
class Attached:
    """A model that is ready to be written. `settings` are inputs that a request may leave out, `beside` the graphs and
    configs of models that stand beside it, by their names, and `notes` what its README says of them."""

    model: onnx.ModelProto
    config: str
    takes: Takes
    settings: Mapping[str, Setting]
    labels: Sequence[str] | None
    report: Report
    beside: Mapping[str, tuple[onnx.ModelProto | None, str]]
    notes: Sequence[str] = ()


def attached(
    name: str,
    takes: Takes,
    network: onnx.ModelProto,
    nodes: tuple[Nodes, Nodes],
    answers: Answers,
    batch: int,
    labels: Sequence[str] | None,
    report: Report,
    *,
    beside: Mapping[str, tuple[onnx.ModelProto | None, str]] = {},
    picture_model: str = "",
    notes: Sequence[str] = (),
) -> Attached:
    """Joins a network with the nodes before and behind it, and makes the config. `batch` is the largest batch, `labels`
    are those of the classes. Raises AttachError."""
    before, after = nodes
    settings.check(after, graph.STATUS)
    answers = _beside(takes, after, answers)
    model = graph.joined(network, before, after, answers, takes)
    config = folder.config_text(
        name,
        takes,
        answers,
        batch,
        labelled=labels is not None,
        settings=after.settings,
        picture_model=picture_model,
    )
    return Attached(model, config, takes, after.settings, labels, report, beside, notes)


def _beside(takes: Takes, after: Nodes, answers: Answers) -> Answers:
    """Gives answers and settings other names where an input has theirs: a table may have a column `status`."""
    taken = {each.name for each in takes.inputs}
    clashes = taken & {*after.settings, *(name for node in after.nodes for name in node.output)}
    if not clashes:
        return answers

    def new(name: str) -> str:
        if name not in clashes:
            return name
        free = f"answer_{name}"
        while free in taken:
            free = f"answer_{free}"
        return free

    for node in after.nodes:
        for names in (node.input, node.output):
            names[:] = [new(name) for name in names]
    after.settings = {new(name): setting for name, setting in after.settings.items()}
    return replace(
        answers,
        outputs=[replace(each, name=new(each.name)) for each in answers.outputs],
        fields=[(field, new(output)) for field, output in answers.fields],
        count=new(answers.count),
        text=new(answers.text),
        status=new(answers.status),
    )


def with_own_names(made: Attached) -> Attached:
    """Gives the outputs of a network that are answered as they are the names that they have in its file, if no other
    tensor has them."""
    taken = {name for each in graphs_of(made.model) for node in each.node for name in (*node.input, *node.output)}
    taken |= {value.name for value in made.model.graph.input} | {value.name for value in made.model.graph.initializer}
    own = {value.name: value.name.removeprefix(graph.NETWORK) for value in made.model.graph.output}
    new = {name: short for name, short in own.items() if name != short and short not in taken}
    graph.rename(made.model, lambda name: new.get(name, name))
    config = made.config
    for name, short in new.items():
        config = config.replace(json.dumps(name), json.dumps(short))
    return replace(made, config=config)


def write(
    attached: Attached,
    to: Path,
    library: Path,
    command: str,
    *,
    overwrite: bool,
    compare: Callable[[Served, Path], Compared] | None = None,
) -> tuple[list[Path], Sequence[str]]:
    """Writes a model's folder, after it has loaded it, in ONNX Runtime and as the gateway does, and has compared it:
    `compare` gets the loaded model and its folder. Returns the paths, and the lines of the comparison. Raises
    AttachError."""
    repository.check_free(to, 1, overwrite=overwrite, other="name another folder with --to")
    for place in (to, *(to.with_name(name) for name in attached.beside)):
        if (place / "config.pbtxt").exists() and not overwrite:
            raise AttachError(f"{place / 'config.pbtxt'} is there: replace the model with --overwrite")
    session(attached.model, [library])
    with tempfile.TemporaryDirectory() as tried:  # what can't be served is not written
        place = Path(tried) / to.resolve().name
        _write_model(attached, place, overwrite=False)
        served = Served(place, library)
        answer = served.predict(attached.takes.sample)
        compared = compare(served, place) if compare else None
    sample_name = attached.takes.sample_name
    attached.report.proved(f"loaded: by ONNX Runtime with the op library, and by the gateway; it answers {sample_name}")
    written = _write_model(attached, to, overwrite=overwrite)
    if overwrite:
        _remove_stale(attached, to)
    sample = json.dumps(_short(answer), ensure_ascii=False)
    readme = folder.readme_text(
        to.resolve().name,
        to.parent,
        command,
        attached.takes,
        attached.report,
        sample,
        attached.settings,
        attached.notes,
    )
    texts = {"README.md": readme, "report.txt": "\n".join(attached.report.lines()) + "\n"}
    if compared:
        texts["comparison.html"] = compared.page
    for name, text in texts.items():
        written.append(to / name)
        written[-1].write_text(text, encoding="utf-8")
    return written, compared.lines if compared else ()


def _remove_stale(attached: Attached, to: Path) -> None:
    """Removes the models that an earlier call wrote beside a model, and that the new one doesn't have. They would
    draw what the old one found, or hear what it heard."""
    endings = (folder.DRAW, folder.PICTURE, folder.STREAM)
    for name in {f"{to.resolve().name}{ending}" for ending in endings} - attached.beside.keys():
        place = to.with_name(name)
        config = place / "config.pbtxt"
        if place.is_symlink() or not config.is_file():
            continue
        if config.read_text(encoding="utf-8", errors="replace").startswith(folder.MADE):
            shutil.rmtree(place)


def _write_model(attached: Attached, to: Path, *, overwrite: bool) -> list[Path]:
    """Writes the model file, the config and the labels. Returns the paths."""
    written = []
    if attached.labels is not None:
        to.mkdir(parents=True, exist_ok=True)
        written.append(to / folder.LABELS)
        written[-1].write_text("".join(f"{label}\n" for label in attached.labels), encoding="utf-8")
    for name, (model, config) in attached.beside.items():
        beside = to.with_name(name)
        if model is not None:
            written += repository.write(model, beside, config, overwrite=overwrite)
            continue
        (beside / "1").mkdir(parents=True, exist_ok=True)  # an ensemble has an empty version
        written.append(beside / "config.pbtxt")
        written[-1].write_text(config, encoding="utf-8")
    return [*repository.write(attached.model, to, attached.config, overwrite=overwrite), *written]


def _short(answer: object) -> object:
    """Returns an answer with few numbers of each long list."""
    if isinstance(answer, dict):
        return {key: _short(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [_short(value) for value in answer[:5]] + (["..."] if len(answer) > 5 else [])
    return float(np.float32(answer)) if isinstance(answer, float) else answer
