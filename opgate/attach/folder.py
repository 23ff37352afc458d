"""Writes a served model's folder: config.pbtxt, labels.txt, README.md."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from opgate.attach.nodes import Setting
from opgate.attach.post import Answer, Answers
from opgate.attach.report import Report
from opgate.attach.settings import messages

LIBRARY = "libopgate_onnxruntime.so"
LABELS = "labels.txt"
#: How the config of each model begins that `opgate attach` writes.
MADE = "# Written by `opgate attach`"
_MESSAGES = (
    "1=not a JPEG, PNG, WebP, BMP or GIF;2=corrupt or truncated;3=more than 50000000 pixels;"
    "4=an unsupported kind of picture"
)


def config_text(
    name: str,
    answers: Answers,
    max_batch_size: int,
    *,
    labelled: bool,
    settings: Mapping[str, Setting],
    picture_model: str = "",
) -> str:
    """Returns the config.pbtxt of a model from `data` and `ends` to the answers and `status`. `settings` are inputs
    that a request may leave out. `picture_model` answers with a picture.

    With a `max_batch_size` of 1 there is no dynamic batching.
    """
    lines = [
        f"{MADE}: encoded pictures in, labelled answers out.",
        f"name: {json.dumps(name, ensure_ascii=False)}",
        'backend: "onnxruntime"',
        f"max_batch_size: {max_batch_size}",
        'input { name: "data" data_type: TYPE_UINT8 dims: [ -1 ] allow_ragged_batch: true }',
        *(
            f'input {{ name: "{each}" data_type: {setting.datatype} dims: [ 1 ] optional: true }}'
            for each, setting in settings.items()
        ),
        'batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends" data_type: TYPE_INT32 '
        'source_input: "data" }',
        *(
            _output(answer, labelled)
            for answer in (*answers.outputs, Answer("status", "TYPE_INT32", (1,), scalar=True))
        ),
    ]
    if max_batch_size > 1:
        lines.append("dynamic_batching {}")
    lines.append(f'model_operations {{ op_library_filename: "{LIBRARY}" }}')
    parameters = {
        "row_status_output": "status",
        "row_status_messages": _MESSAGES + messages(settings),
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
    name: str, repository: Path, command: str, report: Report, sample: str, settings: Mapping[str, Setting]
) -> str:
    """Returns a README: how to serve the model, a request, what it answers, and how it was made. `sample` is the answer
    to a grey picture in JSON, `settings` the inputs that a request may leave out."""
    return f"""# {name}

Made by

```sh
{command}
```

Serve it and send it a picture:

```sh
opgate serve --model-repository {shlex.quote(str(repository))}
curl localhost:8000/predict/{quote(name)} -H 'Content-Type: image/jpeg' --data-binary @picture.jpg
```

{_settings(name, settings)}The answer to a grey picture:

```json
{sample}
```

A file that is no picture, or a broken one, is answered with 400 and the reason, also among others in a batch.

## What is known of the network

| fact | value | from | why |
|---|---|---|---|
{_table(report)}

{_list(report.proofs)}
"""


def _settings(model: str, settings: Mapping[str, Setting]) -> str:
    """Returns how a request states the inputs that it may leave out."""
    if not settings:
        return ""
    bounds = ", ".join(f"{name} from {each.least:g} to {each.most:g}" for name, each in settings.items())
    stated = " ".join(f"-F {name}={each.default:g}" for name, each in settings.items())
    return (
        f"A request may state its own {bounds}, in a form or in the query of its URL. Without, they are as here:\n\n"
        f"```sh\ncurl localhost:8000/predict/{quote(model)} -F data=@picture.jpg {stated}\n```\n\n"
    )


def _table(report: Report) -> str:
    rows = [(fact.subject, fact.value, fact.origin, fact.why) for fact in report.facts]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
