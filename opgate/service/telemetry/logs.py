"""Formats logs: one JSON object a line, or text for people."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from opgate.service.core.errors import Kind, ServingError, invalid

# What log_format may be: as at the start, or text with the time in ISO 8601.
_ISO = "ISO8601"
_FORMATS = ("default", _ISO)
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message", "taskName"}


def extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Returns the fields that the log call passed as `extra`."""
    return {k: v for k, v in record.__dict__.items() if k not in _STANDARD and v is not None}


# Characters that wait until somebody reads the log, lines that are written at once, and seconds that the end of the
# process waits for the last ones.
_MOST_WAITING = 4 << 20
_AT_ONCE = 64
_MOST_FLUSH = 2.0
_STDERR = 2
# What ends a line or steers a terminal: clients may write it into names and ids.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _plain(text: str) -> str:
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class TextFormatter(logging.Formatter):
    """Writes time, level, logger, message and the fields of `extra` as text for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Returns the time in ISO 8601."""
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Returns the line without the traceback of an exception."""
        return _plain(" ".join([super().formatMessage(record), *(f"{k}={v}" for k, v in extra_fields(record).items())]))

    def formatException(self, info: Any) -> str:
        """Returns the traceback, whose lines can't be taken for lines of the log."""
        return "\n".join(f"    {_plain(line)}" for line in super().formatException(info).split("\n"))


class JsonFormatter(logging.Formatter):
    """Writes time, level, logger, message and the fields of `extra` as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns one line of JSON."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= extra_fields(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class LogHandler(logging.Handler):
    """Writes lines to a file descriptor on a thread of its own: whoever reads them may stop to, and nothing waits then.

    What has no room is lost and counted.
    """

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file
        self._lines: deque[str] = deque()
        self._waiting = 0  # characters that are not written yet
        self._lost = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._write, name="opgate-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Lets the thread write a line."""
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        with self._changed:
            if self._waiting + len(line) > _MOST_WAITING:
                self._lost += 1
                return
            self._lines.append(line)
            self._waiting += len(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Waits until everything is written, but not long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, _MOST_FLUSH)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                lines, lost = [self._lines.popleft()], 0
                while self._lines and len(lines) < _AT_ONCE:
                    lines.append(self._lines.popleft())
                written = sum(map(len, lines))
                if not self._lines:
                    lost, self._lost = self._lost, 0
            if lost:
                text = "%d lines of the log are lost: nobody read it in time"
                what = {"name": "opgate", "levelno": logging.WARNING, "levelname": "WARNING"}
                lines.append(self.format(logging.makeLogRecord({**what, "msg": text, "args": (lost,)})) + "\n")
            with contextlib.suppress(OSError):  # nobody can read it any more
                for data in _together([line.encode("utf-8", "backslashreplace") for line in lines]):
                    self._put(data)
            with self._changed:
                self._waiting -= written
                self._changed.notify_all()

    def _put(self, data: bytes) -> None:
        """Writes bytes, and waits for who reads them."""
        while data:
            try:
                data = data[os.write(self._file, data) :]
            except BlockingIOError:  # somebody who shares the file has made it so
                select.select([], [self._file], [])


def _together(lines: list[bytes]) -> Iterator[bytes]:
    """Yields lines in groups that the kernel writes in one piece, so that those of several processes don't mix."""
    group = b""
    for line in lines:
        if group and len(group) + len(line) > select.PIPE_BUF:
            yield group
            group = b""
        group += line
    yield group


class LogSettings(logging.Filter):
    """The log settings of Triton. It is the filter of the handler that writes the log."""

    def __init__(self, handler: logging.Handler, level: str, form: str) -> None:
        """`level` is that of the start, `form` "json" or "text"."""
        super().__init__()
        number = int(logging.getLevelName(level.upper()))
        self._handler = handler
        self._form = form
        self.format = "default"
        self.shown = {
            "log_info": number <= logging.INFO,
            "log_warning": number <= logging.WARNING,
            "log_error": number <= logging.ERROR,
        }
        self.verbose = int(number <= logging.DEBUG)
        self._start = self.as_map()

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a line is written."""
        if record.levelno >= logging.CRITICAL:
            return True
        if record.levelno < logging.INFO:
            return self.verbose > 0
        if record.levelno < logging.WARNING:
            return self.shown["log_info"]
        return self.shown["log_warning" if record.levelno < logging.ERROR else "log_error"]

    def apply(self) -> None:
        """Sets the level of the root logger, below which no line is made, and that of the gateway's own loggers."""
        logging.getLogger("opgate").setLevel(logging.DEBUG if self.verbose else logging.NOTSET)
        least = [
            (logging.INFO, self.shown["log_info"]),
            (logging.WARNING, self.shown["log_warning"]),
            (logging.ERROR, self.shown["log_error"]),
        ]
        logging.getLogger().setLevel(next((level for level, shown in least if shown), logging.CRITICAL))

    def as_map(self) -> dict[str, Any]:
        """Returns the settings by Triton's names."""
        return {"log_file": "", **self.shown, "log_verbose_level": self.verbose, "log_format": self.format}

    def _misfit(self, name: str, value: Any) -> str:
        """Returns what a setting expects if the value is something else."""
        if name in self.shown:
            return "" if isinstance(value, bool) else "a boolean"
        if name == "log_verbose_level":
            return "" if type(value) is int and 0 <= value < 1 << 31 else "a number"
        return "" if value in _FORMATS else " or ".join(_FORMATS)

    def update(self, changes: Mapping[str, Any]) -> None:
        """Changes settings by Triton's names. None takes back what was changed before.

        Raises ServingError: INVALID if a value or name is wrong, UNSUPPORTED for the place of the log.
        """
        changes = {name: self._start.get(name) if value is None else value for name, value in changes.items()}
        for name, value in changes.items():
            if name == "log_file":
                text = "log file location can not be updated through network protocol"
                raise ServingError(Kind.UNSUPPORTED, text)
            if name not in self.as_map():
                raise invalid(f"'{name[:80]}' is no log setting: expected one of {', '.join(self.as_map())}")
            if expected := self._misfit(name, value):
                raise invalid(f"{name}: expected {expected}, got {str(value)[:40]!r}")
        self.shown |= {name: value for name, value in changes.items() if name in self.shown}
        self.verbose = changes.get("log_verbose_level", self.verbose)
        self.format = changes.get("log_format", self.format)
        self.apply()
        plain = self.format == _ISO or self._form == "text"
        self._handler.setFormatter(TextFormatter() if plain else JsonFormatter())


def configure(level: str, form: str) -> LogSettings:
    """Sends all logs of the process to stderr. `form` is "json" or "text". Returns the settings that can change."""
    handler = LogHandler(_STDERR)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    settings = LogSettings(handler, level, form)
    handler.addFilter(settings)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    settings.apply()
    return settings
