"""How /predict shows a model's outputs, by the config's predict_* parameters."""

from __future__ import annotations

from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from service.execution.spec import ModelSpec
from service.repository.config import ConfigError, parameter


@dataclass(frozen=True, slots=True)
class Presentation:
    """`fields` are (field of a record, output); `count` is the output that says how many records there are."""

    count: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    picture_model: str = ""


def read_presentation(config: ModelConfig, spec: ModelSpec) -> Presentation:
    """Raises ConfigError that names the parameter."""
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
