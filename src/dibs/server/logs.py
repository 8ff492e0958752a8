"""The server's log on stderr: lines of text or JSON, with a line for each request if a format is set.

The line of a request has its route instead of its path, so it contains no name, id or secret. A thread writes
the lines, so a reader that does not read blocks no request: then further lines are dropped and counted.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener
from queue import Full, Queue
from typing import Any, Literal

from dibs.server.api.routing import Operation
from dibs.server.auth.api_key import utc_time

type Format = Literal["", "text", "json"]
"""The format of lines; empty: text, and problems only."""

STDERR = 2

LINES = 10_000
"""Lines that can wait to be written."""

PATIENCE = 2.0
"""Seconds for which the end of a server waits until the last lines are written."""

_LOGGERS = ("dibs", "uvicorn")


class LogQueue(QueueHandler):
    """Formats records and queues them. Never blocks."""

    queue: Queue[Any]

    def __init__(self, form: logging.Formatter) -> None:
        super().__init__(Queue(LINES))
        self.setFormatter(form)
        self._dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a line, or drop it if too many are waiting."""
        try:
            if self._dropped:
                text = f"{self._dropped} lines were dropped: nobody read them"
                self.queue.put_nowait(self.prepare(_record(logging.WARNING, text)))
                self._dropped = 0
            self.queue.put_nowait(record)
        except Full:
            self._dropped += 1

    def request(self, operation: Operation | None, status: int, seconds: float) -> None:
        """Log a request that has ended."""
        record = _record(logging.INFO, "")
        record.request = {
            "event": "request",
            "method": operation.method if operation else "",
            "route": operation.path if operation else "",
            "status": status,
            "ms": round(seconds * 1e3, 2),
        }
        self.handle(record)


def _record(level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord(__name__, level, "", 0, text, None, None)


class _Writer(logging.Handler):
    """Writes without `sys.stderr`, which the interpreter could not close at its exit if this blocked."""

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        rest = record.getMessage().encode("utf-8", "backslashreplace") + b"\n"
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            pass  # it is closed


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        head = f"{_now()} {record.levelname.lower()}"
        request = getattr(record, "request", None)
        if request is not None:
            what = f"{request['method']} {request['route']}".strip() or "no route"
            return f"{head} {what} {request['status']} {request['ms']} ms"
        trace = _traceback(record)
        return f"{head} {record.name}: {record.getMessage()}" + (f"\n{trace}" if trace else "")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        about = getattr(record, "request", None)
        if about is None:
            about = {"logger": record.name, "message": record.getMessage()}
            if trace := _traceback(record):
                about["trace"] = trace
        return json.dumps({"time": _now(), "level": record.levelname.lower(), **about})


def _traceback(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    return logging.Formatter().formatException(record.exc_info)


def _now() -> str:
    return utc_time(time.time(), "milliseconds")


@contextmanager
def logging_to(file: int, chosen: Format) -> Generator[LogQueue]:
    """Write what Dibs and uvicorn log to a file descriptor, in the chosen format, until the block ends.

    At most `LINES` wait to be written.
    """
    queue = LogQueue(_Json() if chosen == "json" else _Text())
    if not chosen:
        queue.setLevel(logging.WARNING)
    listener = QueueListener(queue.queue, _Writer(file))
    listener.start()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addHandler(queue)
    try:
        yield queue
    finally:
        for logger in loggers:
            logger.removeHandler(queue)
        end = threading.Thread(target=_stop, args=(queue.queue, listener), daemon=True)
        end.start()
        end.join(PATIENCE)


def _stop(lines: Queue[Any], listener: QueueListener) -> None:
    lines.join()  # or there might be no room for the end of the queue
    listener.stop()
