"""Configs of models: any text of config.pbtxt gives a model, or a sentence that says why not."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

from google.protobuf import text_format
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig

from opgate.service.gateway import Gateway
from opgate.service.settings import Settings
from tests.fuzz.gateway import INSIDE
from tests.fuzz.strategies import EDITS, edited, messages, rarely
from tests.service.onnx_models import double

SMALL = st.integers(0, 5)
HINTS = {
    "ModelConfig.name": st.just("scratch"),
    "backend": st.sampled_from(["onnxruntime", ""]),
    "platform": st.sampled_from(["onnxruntime_onnx", "", "ensemble"]),
    "ModelInput.name": st.just("x"),
    "ModelOutput.name": st.just("y"),
    "data_type": st.just(11),
    "dims": st.sampled_from([4, -1, 1]),
    "max_batch_size": st.sampled_from([0, 1, 8]),
    "preferred_batch_size": SMALL,
    "max_queue_delay_microseconds": st.sampled_from([0, 100]),
    # An instance is a session of the engine, so that a large number only takes time.
    "ModelInstanceGroup.count": st.sampled_from([0, 1, 2, -1]),
    "ModelInstanceGroup.kind": st.sampled_from([0, 2, 3]),
    "default_model_filename": st.sampled_from(["", "model.onnx"]),
    "num_versions": SMALL,
    "versions": st.sampled_from([1, 2]),
    "parameters.key": st.sampled_from([
        "intra_op_thread_count", "execution_mode", "row_status_output", "row_status_messages", "predict_count_output",
        "predict_fields", "predict_picture_model", "predict_media_types", "predict_text_output", "gateway_backend", "golden_tolerance", "max_latency_ms",
        "pad_inputs", "pad_masks", "pad_outputs", "pad_buckets", "batch_by", "length_buckets", "residency", "share", "session.x", "enable_mem_arena", "note",
    ]),
    "string_value": st.sampled_from([
        "1", "0", "y", "x", "x:y", "0.5", "x=y", "1,2,3", "x:0:1,2", "{}", "[1]", '{"x": [1]}', "nan", "inf", "1e999", ",", ":", "=",
        "image/png", "triton", "on_demand", "x:1", "x[1]", "4,8", "x:0=4",
    ]),
    "model_name": st.sampled_from(["double", "scratch", "none"]),
    "input_map.key": st.just("x"), "input_map.value": st.sampled_from(["x", "mid"]),
    "output_map.key": st.just("y"), "output_map.value": st.sampled_from(["y", "mid"]),
}  # fmt: skip


def _few_instances(config: ModelConfig) -> ModelConfig:
    """Returns a config whose instances a machine can start. Each is a session, and Triton too starts as many as asked."""
    for group in config.instance_group:
        group.count = min(group.count, 2)
    return config


IO = """input [{name: "x" data_type: TYPE_FP32 dims: [4]}] output [{name: "y" data_type: TYPE_FP32 dims: [4]}]"""
GOOD = [
    f'backend: "onnxruntime" max_batch_size: 8 {IO} dynamic_batching {{}}',
    'backend: "onnxruntime" max_batch_size: 8',
    "",
    f"max_batch_size: 8 {IO} dynamic_batching {{ priority_levels: 2 default_priority_level: 1 }}",
    f"max_batch_size: 8 {IO} response_cache {{ enable: true }} instance_group [{{ count: 2 kind: KIND_CPU }}]",
    f"max_batch_size: 8 {IO} sequence_batching {{ direct {{}} }}",
    f"max_batch_size: 8 {IO} sequence_batching {{ oldest {{ max_candidate_sequences: 4 }} }}",
    f"""platform: "ensemble" max_batch_size: 8 {IO} ensemble_scheduling {{ step [{{ model_name: "double" model_version: -1
      input_map {{ key: "x" value: "x" }} output_map {{ key: "y" value: "y" }} }}] }}""",
]


@st.composite
def _almost_good(draw: st.DrawFn) -> ModelConfig:
    """Draws a good config with a field or two more, or other ones."""
    config = text_format.Parse(draw(st.sampled_from(GOOD)), ModelConfig())
    more = draw(messages(ModelConfig, HINTS, most=2))
    for field, _ in more.ListFields():
        if draw(st.booleans()):
            config.ClearField(field.name)
    config.MergeFrom(more)
    return config


#: Configs that are good in parts.
CONFIGS = st.one_of(_almost_good(), _almost_good(), messages(ModelConfig, HINTS)).map(_few_instances)
TEXT = st.one_of(
    st.tuples(CONFIGS.map(text_format.MessageToString), rarely(st.just([]), EDITS)).map(
        lambda pair: edited(pair[0].encode(), pair[1])
    ),
    st.tuples(st.sampled_from(GOOD), EDITS).map(lambda pair: edited(pair[0].encode(), pair[1])),
    st.binary(max_size=30),
)


class _Failures(logging.Handler):
    """Collects what failed inside: records with an exception."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Looks at a record."""
        if record.exc_info:
            self.found.append(logging.Formatter().format(record))


async def _close(gateway: Gateway) -> None:
    # A model waits for those that use it.
    await asyncio.gather(*(model.close() for model in list(gateway.catalog.models())))


class Loader:
    """Loads one model again and again, each time with another config."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "repository"
        double(self.repository, "double", config="max_batch_size: 16")
        self.model = double(self.repository, "scratch")
        (self.model / "labels.txt").write_text("a\nb\n")
        self.settings = Settings(model_repository=self.repository, build_ops=folder / "ops", ops_path="")
        self.failures = _Failures()

    def check(self, text: bytes) -> None:
        """Loads a model with this config.pbtxt. It serves, or its reason is a sentence."""
        (self.model / "config.pbtxt").write_bytes(text)
        self.failures.found.clear()
        logger = logging.getLogger("opgate")
        logger.addHandler(self.failures)
        try:
            gateway = Gateway(self.settings)
            gateway.catalog.load_all()
            rows = {row[0]: row for row in gateway.catalog.index()}
            asyncio.run(_close(gateway))
        finally:
            logger.removeHandler(self.failures)
        assert not self.failures.found, "\n".join(self.failures.found)
        _, _, state, reason = rows["scratch"]
        assert rows["double"][2] == "READY", rows
        assert state == "READY" or (reason and not INSIDE.search(reason)), rows

    def close(self) -> None:
        """Removes the repository."""
        shutil.rmtree(self.repository)
