"""The log of a worker process that runs code in Python. It needs the standard library only."""

from __future__ import annotations

import json
import logging
import sys


def begin_log(level: str, as_json: bool, model: str) -> None:
    """Writes what Python logs to standard error, with the name of the model."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Json(model) if as_json else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _Json(logging.Formatter):
    """Lines as the gateway writes them."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    def format(self, record: logging.LogRecord) -> str:
        from datetime import UTC, datetime

        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": text,
            "model": self._model,
        }
        return json.dumps(fields, ensure_ascii=False)
