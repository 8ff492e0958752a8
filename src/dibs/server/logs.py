"""What a server logs: on stderr, as lines of text or of JSON, and one for each request if that is asked for.

The line of a request has its route and not its path, so there is no name, no id and no secret in it. The
service waits for nobody who reads its log: while that is not read, lines are dropped, and how many is said.
"""

import json
import logging
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, Literal

from dibs.server.api.routing import Operation

if TYPE_CHECKING:
    from dibs.server.serve import Server

type Format = Literal["", "text", "json"]
"""How lines are written; empty: only what goes wrong, as text."""

STDERR = 2

LINES = 10_000
"""So many lines may wait to be written."""

ENDS = 2.0
"""So long the last lines have to be written, in seconds."""

_LOGGERS = ("dibs", "uvicorn")


class Writer:
    """A thread that writes lines, so that a log which nobody reads holds nobody up."""

    def __init__(self, file: int, lines: int = LINES) -> None:
        self._file = file
        self._waiting: Queue[str | None] = Queue(lines)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="dibs log", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        """One more line, or one that is dropped. Never blocks."""
        try:
            self._waiting.put_nowait(line)
        except Full:
            self._dropped += 1

    def take_dropped(self) -> int:
        """How many were dropped since this was asked last."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def close(self) -> None:
        """Have the last lines written, if somebody reads them."""
        try:
            self._waiting.put(None, timeout=ENDS)
        except Full:
            return
        self._thread.join(ENDS)

    def _write(self) -> None:
        while (line := self._waiting.get()) is not None:
            rest = line.encode("utf-8", "backslashreplace") + b"\n"
            try:
                while rest:  # not by sys.stderr, which the interpreter could not close if this hung
                    rest = rest[os.write(self._file, rest) :]
            except OSError:
                pass  # it is closed


class Log(logging.Handler):
    """All that a server has to say, in one format."""

    def __init__(self, writer: Writer, *, as_json: bool) -> None:
        super().__init__()
        self._writer = writer
        self._shape = _as_json if as_json else _as_text

    def emit(self, record: logging.LogRecord) -> None:
        """What the library, the service, or the web server logs."""
        about: dict[str, Any] = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            about["trace"] = logging.Formatter().formatException(record.exc_info)
        self._say(record.levelname.lower(), about)

    def request(self, route: Operation | None, status: int, seconds: float) -> None:
        """One has ended."""
        about = {
            "event": "request",
            "method": route.method if route else "",
            "route": route.path if route else "",
            "status": status,
            "ms": round(seconds * 1e3, 2),
        }
        self._say("info", about)

    def _say(self, level: str, about: dict[str, Any]) -> None:
        dropped = self._writer.take_dropped()
        if dropped:
            told = {
                "logger": __name__,
                "message": f"{dropped} lines were dropped: nobody read them",
            }
            self._writer.put(self._shape("warning", told))
        self._writer.put(self._shape(level, about))


def _as_json(level: str, about: dict[str, Any]) -> str:
    return json.dumps({"time": _now(), "level": level, **about})


def _as_text(level: str, about: dict[str, Any]) -> str:
    if "route" in about:
        what = f"{about['method']} {about['route']}".strip() or "no route"
        return f"{_now()} {level} {what} {about['status']} {about['ms']} ms"
    trace = f"\n{about['trace']}" if "trace" in about else ""
    return f"{_now()} {level} {about['logger']}: {about['message']}{trace}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@asynccontextmanager
async def logged(server: "Server") -> AsyncGenerator[None]:
    """Log as the settings say as long as the server runs."""
    chosen = server.config.log_format
    writer = Writer(STDERR)
    log = Log(writer, as_json=chosen == "json")
    if chosen:
        server.service.meters.append(log.request)
    else:
        log.setLevel(logging.WARNING)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addHandler(log)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(log)
        writer.close()
