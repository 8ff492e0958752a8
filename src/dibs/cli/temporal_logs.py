"""What a worker tells while it runs: each line with its time, whoever speaks, as text or as JSON."""

import logging
from datetime import UTC, datetime
from typing import Any

from dibs.cli.voice import Voice

LOGGERS = ("dibs", "temporalio", "asyncio")
"""Whose warnings are told; `temporalio.core` is the SDK's own core."""


_TRIED_AGAIN = "gRPC call "
"""Dozens of lines a minute where the server is away, which is told once."""


class TimedVoice(Voice):
    """Begins each line with the time, in UTC, or has it as `time`."""

    @property
    def as_json(self) -> bool:
        """Each line is an object."""
        return self._as_json

    def say(self, event: str, text: str, **fields: Any) -> None:
        """Tell what happened."""
        if self._as_json:
            fields = {"time": _now(), **fields}
        super().say(event, text, **fields)

    def _write(self, text: str) -> None:
        super()._write(text if self._as_json else f"{_now()} {text}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def tell_logs(voice: TimedVoice) -> None:
    """Have warnings of the worker's told by the voice of the command line."""
    handler = _Told(voice)
    for name in LOGGERS:
        logging.getLogger(name).addHandler(handler)


class _Told(logging.Handler):
    def __init__(self, voice: TimedVoice) -> None:
        super().__init__(logging.WARNING)
        self._voice = voice

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(_TRIED_AGAIN):
            return
        trace = _trace(record)
        about = {"traceback": trace} if trace else {}
        text = record.getMessage()
        if trace and not self._voice.as_json:
            text = f"{text}\n{trace}"
        self._voice.say(record.levelname.lower(), text, logger=record.name, **about)


def _trace(record: logging.LogRecord) -> str:
    """As Python writes it; empty without an exception."""
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    return logging.Formatter().formatException(record.exc_info)
