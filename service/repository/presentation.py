"""Reads what /predict takes for a model and how it shows the outputs: the predict_* parameters of its config."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from opgate.service.execution.spec import ModelSpec
from opgate.service.repository.config import ConfigError, parameter

PICTURES = ("image/jpeg", "image/png", "image/webp")

_MEDIA_TYPE = re.compile(r"(image|audio|model|application)/[a-z0-9.+-]+")


@dataclass(frozen=True, slots=True)
class Presentation:
    """What /predict takes for a model, and how it shows the outputs.

    `count` is the output that holds the number of records. `fields` pairs each field of a record with its output.
    `picture_model` is the model that runs if the client wants a picture. All are empty if the config has none.
    `media_types` are the kinds of file that the model takes, apart from application/octet-stream.
    """

    count: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    picture_model: str = ""
    media_types: tuple[str, ...] = PICTURES


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
    picture_model = parameter(config, "predict_picture_model")
    return Presentation(count, tuple(fields), picture_model, _media_types(config) or PICTURES)


def _media_types(config: ModelConfig) -> tuple[str, ...]:
    """Returns the media types that a config states, in lower case."""
    stated = filter(None, parameter(config, "predict_media_types").split(","))
    types = tuple(text.strip().lower() for text in stated)
    for media in types:
        if not _MEDIA_TYPE.fullmatch(media):
            raise ConfigError(f"parameter 'predict_media_types': expected types such as audio/wav, got '{media}'")
    return types
