"""Writes a served model's folder: config.pbtxt, labels.txt, README.md."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from opgate.attach.model.nodes import Setting
from opgate.attach.model.post import Answer, Answers
from opgate.attach.model.report import Report
from opgate.attach.model.settings import messages
from opgate.attach.model.takes import Takes

LIBRARY = "libopgate_onnxruntime.so"
LABELS = "labels.txt"
#: What is added to the name of a model for the model that draws, and for the ensemble of both.
DRAW, PICTURE = "_draw", "_picture"
#: What is added to the name of a model for that of the model that gets a sound in pieces.
STREAM = "_stream"
#: How the config of each model begins that `opgate attach` writes.
MADE = "# Written by `opgate attach`"


def config_text(
    name: str,
    takes: Takes,
    answers: Answers,
    max_batch_size: int,
    *,
    labelled: bool,
    settings: Mapping[str, Setting],
    picture_model: str = "",
) -> str:
    """Returns the config.pbtxt of a model from what a request has to the answers and `status`. `settings` are inputs
    that a request may leave out. `picture_model` answers with a picture.

    With a `max_batch_size` of 1 there is no dynamic batching.
    """
    lines = [
        f"{MADE}: a {takes.what} in, an answer out.",
        f"name: {json.dumps(name, ensure_ascii=False)}",
        'backend: "onnxruntime"',
        f"max_batch_size: {max_batch_size}",
        *takes.config,
        *(
            f'input {{ name: "{each}" data_type: {setting.datatype} dims: [ 1 ] optional: true }}'
            for each, setting in settings.items()
        ),
        *(
            _output(answer, labelled)
            for answer in (*answers.outputs, Answer(answers.status, "TYPE_INT32", (1,), scalar=True))
        ),
    ]
    if max_batch_size > 1:
        lines.append("dynamic_batching {}")
    lines.append(f'model_operations {{ op_library_filename: "{LIBRARY}" }}')
    parameters = {
        "row_status_output": answers.status,
        "row_status_messages": (takes.statuses + messages(settings)).lstrip(";"),
        "predict_media_types": takes.media_types,
        "predict_count_output": answers.count,
        "predict_text_output": answers.text,
        "predict_mask_outputs": ",".join(answers.masks),
        "predict_picture_model": picture_model,
        "predict_fields": ",".join(f"{field}={output}" for field, output in answers.fields),
    }
    lines += [
        f"parameters {{ key: {json.dumps(key)} value {{ string_value: {json.dumps(value)} }} }}"
        for key, value in parameters.items()
        if value
    ]
    return "\n".join(lines) + "\n"


def _output(answer: Answer, labelled: bool) -> str:
    dims = ", ".join(map(str, answer.dims))
    scalar = " reshape { shape: [ ] }" if answer.scalar else ""
    labels = f' label_filename: "{LABELS}"' if answer.labels and labelled else ""
    return f'output {{ name: "{answer.name}" data_type: {answer.datatype} dims: [ {dims} ]{scalar}{labels} }}'


def readme_text(
    name: str,
    repository: Path,
    command: str,
    takes: Takes,
    report: Report,
    sample: str,
    settings: Mapping[str, Setting],
    beside: Sequence[str] = (),
) -> str:
    """Returns a README: how to serve the model, a request, what it answers, and how it was made. `sample` is the answer
    to the sample of `takes` in JSON, `settings` the inputs that a request may leave out, `beside` are paragraphs on
    models beside it."""
    return f"""# {name}

Made by

```sh
{command}
```

Serve it and send it a {takes.what}:

```sh
opgate serve --model-repository {shlex.quote(str(repository))}
curl localhost:8000/predict/{quote(name)} {takes.sent}
```

{_settings(name, takes, settings)}The answer to {takes.sample_name}:

```json
{sample}
```

{_paragraphs([takes.wrong, *beside])}## What is known of the network

| fact | value | from | why |
|---|---|---|---|
{_table(report)}

{_list(report.proofs)}
"""


def _paragraphs(texts: Sequence[str]) -> str:
    return "".join(f"{text}\n\n" for text in texts if text)


def _settings(model: str, takes: Takes, settings: Mapping[str, Setting]) -> str:
    """Returns how a request states the inputs that it may leave out."""
    if not settings:
        return ""
    bounds = ", ".join(f"{name} from {each.least:g} to {each.most:g}" for name, each in settings.items())
    if takes.form:
        stated = " ".join(f"-F {name}={each.default:g}" for name, each in settings.items())
        request = f"{quote(model)} {takes.form} {stated}"
    else:
        stated = r"\&".join(f"{name}={each.default:g}" for name, each in settings.items())
        request = f"{quote(model)}?{stated} {takes.sent}"
    return (
        f"A request may state its own {bounds}, in a form or in the query of its URL. Without, they are as here:\n\n"
        f"```sh\ncurl localhost:8000/predict/{request}\n```\n\n"
    )


def _table(report: Report) -> str:
    rows = [(fact.subject, fact.value, fact.origin, fact.why) for fact in report.facts]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
