"""Sessions of ONNX Runtime on models that are in memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
import onnxruntime as ort


class SessionError(RuntimeError):
    """ONNX Runtime can't load a library or a model. The message is its own, on one line."""


def session(
    model: onnx.ModelProto,
    libraries: Iterable[Path] = (),
    folder: Path | None = None,
    *,
    threads: int = 0,
    profile: Path | None = None,
) -> ort.InferenceSession:
    """Returns a session on the CPU. `folder` has the files of weights that are not in the model. ONNX Runtime writes a
    profile of the runs to the folder `profile`. Raises SessionError."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    # Threads that wait for the next run would take half of the processor's time.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile / "run")
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    try:
        for library in libraries:
            options.register_custom_ops_library(str(library.resolve()))
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the classes of onnxruntime's exceptions share no other base
        raise SessionError(one_line(error)) from None


def one_line(error: Exception) -> str:
    """Returns the message of an exception without line feeds."""
    return " ".join(str(error).split())
