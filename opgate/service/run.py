"""Serves a model repository in this process, or in several that it starts."""

from __future__ import annotations

import logging
import os
import resource

import onnxruntime

from opgate.service import app
from opgate.service.execution.run_on_loop import ON_LOOP
from opgate.service.native import process
from opgate.service.processes.supervisor import supervise
from opgate.service.settings import Settings, misspelt
from opgate.service.signals import SignalThread
from opgate.service.telemetry import logs
from opgate.service.temporary_folder import TemporaryFolder
from opgate.tried_versions import untried

logger = logging.getLogger("opgate")
# Open files, most of them connections.
_FILES = 1 << 18


def _allow_many_connections() -> None:
    """Raises the number of files that the process may have open as far as it may. Many systems begin with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run(settings: Settings) -> int:
    """Loads the repository and serves it. Returns the exit status.

    The status is 0 after a clean stop, 1 if the gateway can't start or if requests were lost.
    """
    log_settings = logs.configure(settings.log_level, settings.log_format)
    process.watch_crashes(settings.log_format == "json")
    for name, meant in misspelt(os.environ):
        logger.warning("unknown variable %s: did you mean %s?", name, meant)
    if said := untried("onnxruntime", onnxruntime.__version__):
        logger.warning("%s: `opgate verify` tells whether all ops agree there", said)
    _allow_many_connections()
    try:
        temporary = TemporaryFolder()
    except OSError as error:
        logger.error("there is no room for temporary files: %s", error)
        return 1
    try:
        if settings.workers == 1:
            return app.run(settings, log_settings)
        # A second more than the processes have.
        thread = SignalThread(settings.shutdown_timeout + 2, ON_LOOP, settings.run_timeout)
        return supervise(settings, thread, temporary.folder)
    finally:
        temporary.remove()
