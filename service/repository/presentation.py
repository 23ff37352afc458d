"""Reads how /predict shows the outputs of a model: the predict_* parameters of its config."""

from __future__ import annotations

from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from opgate.service.execution.spec import ModelSpec
from opgate.service.repository.config import ConfigError, parameter


@dataclass(frozen=True, slots=True)
class Presentation:
    """How /predict shows the outputs of a model.

    `count` is the output that holds the number of records. `fields` pairs each field of a record with its output.
    `picture_model` is the model that runs if the client wants a picture. All are empty if the config has none.
    """

    count: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    picture_model: str = ""


def read_presentation(config: ModelConfig, spec: ModelSpec) -> Presentation:
    """Returns the Presentation that a config describes. Raises ConfigError that names the parameter."""
    count = parameter(config, "predict_count_output")
    fields: list[tuple[str, str]] = []
    for part in filter(None, parameter(config, "predict_fields").split(",")):
        field, separator, output = (text.strip() for text in part.partition("="))
        if not field or not separator:
            raise ConfigError(f"parameter 'predict_fields': expected field=output,..., got '{part}'")
        fields.append((field, output))
    for key, name in [("predict_count_output", count), *(("predict_fields", output) for _, output in fields)]:
        if name and name not in spec.outputs:
            raise ConfigError(f"parameter '{key}': '{name}' is not an output")
    if bool(count) != bool(fields):
        raise ConfigError("parameters 'predict_count_output' and 'predict_fields' go together")
    return Presentation(count, tuple(fields), parameter(config, "predict_picture_model"))
