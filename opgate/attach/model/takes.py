"""What a request to a served model has: a picture, a sound, a text, any file, or columns of a table."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import TensorProto, ValueInfoProto, helper

from opgate.attach.model.examples import Example, files

#: The name of the batch in a served model's graph.
BATCH = "n"


@dataclass(frozen=True, slots=True)
class Takes:
    """What a request has.

    `what` is called "picture", for one. `inputs` are those of the graph, `config` their lines in a config, `rows` is
    a tensor whose first axis is that of the rows. `statuses` has the texts of the row statuses, and `media_types` those
    that /predict takes, as the parameters of a config have them. `sample` is a file, or values by their names, that a
    new model is tried with, and `sample_name` what that is. `sent` is the rest of a curl command that sends a request,
    `form` that of one with a form, "" if none is usual. `wrong` is what a README says of a request that can't be read.
    `examples` reads those of the user.
    """

    what: str
    inputs: Sequence[ValueInfoProto]
    config: Sequence[str]
    rows: str
    sample: bytes | Mapping[str, Any]
    sample_name: str
    sent: str
    form: str
    statuses: str = ""
    media_types: str = ""
    wrong: str = ""
    examples: Callable[[Path], list[Example]] = files


def json_sent(sample: Mapping[str, Any]) -> str:
    """Returns the rest of a curl command that sends values by the names of inputs."""
    body = json.dumps(sample, ensure_ascii=False)
    return f"-H 'Content-Type: application/json' -d {shlex.quote(body)}"


def file(
    what: str,
    sample: bytes,
    sample_name: str,
    name: str,
    media_type: str,
    statuses: str = "",
    *,
    media_types: str = "",
    wrong: str = "",
    examples: Callable[[Path], list[Example]] = files,
) -> Takes:
    """Returns what a model takes whose only required input is a file: `data` u8, with those of a batch one behind the
    other, and `ends` i32, where each ends. A README has the `name` and `media_type` of one."""
    inputs = [
        helper.make_tensor_value_info("data", TensorProto.UINT8, ["total"]),
        helper.make_tensor_value_info("ends", TensorProto.INT32, [BATCH]),
    ]
    config = [
        'input { name: "data" data_type: TYPE_UINT8 dims: [ -1 ] allow_ragged_batch: true }',
        'batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends" data_type: TYPE_INT32 '
        'source_input: "data" }',
    ]
    sent = f"-H 'Content-Type: {media_type}' --data-binary @{name}"
    form = f"-F data=@{name}"
    return Takes(what, inputs, config, "ends", sample, sample_name, sent, form, statuses, media_types, wrong, examples)
