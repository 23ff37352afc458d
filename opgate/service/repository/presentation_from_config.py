"""Reads what /predict takes for a model and how it shows the outputs: the predict_* parameters of its config."""

from __future__ import annotations

import re

from opgate.service.core.presentation import PICTURES, Presentation, Span
from opgate.service.core.spec import ModelSpec
from opgate.service.core.triton_messages import ModelConfig
from opgate.service.repository.config import ConfigError, parameter

_SPAN = re.compile(r"(\w[\w.-]*)\[(\w[\w.-]*):(\w[\w.-]*)\]")
_MEDIA_TYPE = re.compile(r"(image|audio|model|application|text|video|font)/[a-z0-9.+-]+|\*/\*")


def read_presentation(config: ModelConfig, spec: ModelSpec) -> Presentation:
    """Returns the Presentation that a config describes. Raises ConfigError that names the parameter."""
    count = parameter(config, "predict_count_output")
    fields: list[tuple[str, str]] = []
    spans: list[tuple[str, Span]] = []
    for part in filter(None, parameter(config, "predict_fields").split(",")):
        field, separator, output = (text.strip() for text in part.partition("="))
        if not field or not separator:
            raise ConfigError(f"parameter 'predict_fields': expected field=output,..., got '{part}'")
        if span := _SPAN.fullmatch(output):
            spans.append((field, _span(spec, *span.groups())))
        else:
            fields.append((field, output))
    text = parameter(config, "predict_text_output")
    masks = tuple(name.strip() for name in parameter(config, "predict_mask_outputs").split(",") if name.strip())
    named = [("predict_count_output", count), ("predict_text_output", text)]
    named += [("predict_mask_outputs", name) for name in masks]
    for key, name in [*named, *(("predict_fields", output) for _, output in fields)]:
        if name and name not in spec.outputs:
            raise ConfigError(f"parameter '{key}': '{name}' is not an output")
    if count and not fields and not spans and not text:
        raise ConfigError("parameter 'predict_count_output' without 'predict_fields' or 'predict_text_output'")
    if text and not spec.outputs[text].labels:
        raise ConfigError(f"parameter 'predict_text_output': the output '{text}' has no label_filename")
    if masks:
        _check_masks(masks, spec)
    picture_model = parameter(config, "predict_picture_model")
    return Presentation(
        count, tuple(fields), picture_model, _media_types(config) or PICTURES, text, masks, tuple(spans)
    )


def _span(spec: ModelSpec, name: str, begin: str, end: str) -> Span:
    """Returns the part of a text that a field names. Raises ConfigError."""
    tensor = spec.inputs.get(name)
    if tensor is None or tensor.datatype.name != "BYTES" or any(size != 1 for size in tensor.dims):
        raise ConfigError(f"parameter 'predict_fields': '{name}' in '{name}[{begin}:{end}]' is no input of one text")
    for place in (begin, end):
        if place not in spec.outputs or spec.outputs[place].datatype.dtype.kind not in "iu":
            raise ConfigError(
                f"parameter 'predict_fields': '{place}' in '{name}[{begin}:{end}]' is no output of integers"
            )
    return Span(name, begin, end)


def _check_masks(names: tuple[str, ...], spec: ModelSpec) -> None:
    """Raises ConfigError unless the outputs are masks, their place in the picture, and the box of each mask."""
    kinds = [(spec.outputs[name].datatype.name, spec.outputs[name].dims) for name in names]
    if [kind for kind, _ in kinds] == ["UINT8", "FP32", "FP32"]:
        (most, *sides), geometry, boxes = (dims for _, dims in kinds)
        if len(sides) == 2 and geometry == (6,) and boxes == (most, 4):
            return
    shown = ", ".join(f"{name} {kind} {list(dims)}" for name, (kind, dims) in zip(names, kinds, strict=True))
    raise ConfigError(
        "parameter 'predict_mask_outputs': expected three outputs, UINT8 [k, h, w], FP32 [6] and FP32 [k, 4], "
        f"got {shown}"
    )


def _media_types(config: ModelConfig) -> tuple[str, ...]:
    """Returns the media types that a config states, in lower case."""
    stated = filter(None, parameter(config, "predict_media_types").split(","))
    types = tuple(text.strip().lower() for text in stated)
    for media in types:
        if not _MEDIA_TYPE.fullmatch(media):
            raise ConfigError(f"parameter 'predict_media_types': expected types such as audio/wav, got '{media}'")
    return types
