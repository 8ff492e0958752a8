"""`dibs temporal worker`: serve the task queue on which permits and brokers run, and log."""

import logging
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import click

from dibs.cli import options
from dibs.cli.exits import code_of
from dibs.cli.output import Messages
from dibs.errors import DibsError
from dibs.settings import configured_store

SCHEME = "temporal://"


_EXAMPLE = options.examples(
    "dibs temporal worker --address temporal:7233 --namespace orders --health 0.0.0.0:8080"
)


@click.group(epilog=_EXAMPLE)
def temporal() -> None:
    """Run workers for Temporal workflows."""


@temporal.command(epilog=_EXAMPLE)
@click.option("--address", metavar="HOST:PORT", help="The Temporal server [TEMPORAL_ADDRESS].")
@click.option("--namespace", metavar="NAME", help="Namespace [TEMPORAL_NAMESPACE, else default].")
@click.option(
    "--profile", metavar="NAME", help="Profile in Temporal's settings [TEMPORAL_PROFILE]."
)
@click.option(
    "--url",
    metavar="URL",
    callback=options.before_or_after,
    help="All in one: temporal://host:7233/namespace.",
)
@click.option(
    "--task-queue",
    metavar="NAME",
    help="The queue to serve [TEMPORAL_TASK_QUEUE, else distributed-lock-tq].",
)
@click.option(
    "--health",
    metavar="HOST:PORT",
    help="Answer /livez and /readyz there. Port 0 takes a free one, and prints it.",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Serve Temporal's metrics there, at /metrics. Port 0 as for --health.",
)
@click.option("--drain", metavar="TIME", default="10s", help="Time for activities to finish [10s].")
@click.option(
    "--data-converter",
    metavar="MODULE:NAME",
    help="The DataConverter of your workflows, if it is not Temporal's default.",
)
@options.store_name
@options.as_json
def worker(url: str | None, data_converter: str | None, as_json: bool, **given: Any) -> int:
    """Serve the task queue of permits and brokers.

    SIGTERM or SIGINT lets running activities finish; a second one stops at once. Run two or more workers:
    they take over from each other. While none runs, nothing is granted and nothing is lost.
    """
    if not (url or given["address"] or given["namespace"] or given["profile"]):
        url = _configured_url()
    converter = None if data_converter is None else _converter(data_converter)
    messages = TimedMessages(as_json=as_json)
    show_logs(messages)
    try:
        _run(url, data_converter=converter, say=messages.show, **given)
    except DibsError as error:
        messages.fail(error, code_of(error))
        return code_of(error)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "temporalio":
            raise
        raise click.UsageError(str(error)) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return 0


def _run(url: str | None, **given: Any) -> None:
    import asyncio

    from dibs.temporal import serve

    asyncio.run(serve(url, **given))


def _configured_url() -> str | None:
    """The store of `--store`, or the default one where that is Temporal too."""
    name = options.store_asked()
    found = configured_store(name)
    if found is not None and found.url.startswith(SCHEME):
        return found.url
    if name is None:
        return None
    what = "is not in the settings" if found is None else f"is not a {SCHEME} store"
    raise click.UsageError(f"the store {name!r} {what}")


def _converter(text: str) -> Any:
    """Import `module:name`. The working directory comes first, as with `python -m`."""
    import sys

    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise click.UsageError(f"--data-converter is {text!r}: write it as package.module:name")
    sys.path.insert(0, "")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"--data-converter {text}: {error}") from error


LOGGERS = ("dibs", "temporalio", "asyncio")
"""Loggers whose warnings are shown. `temporalio.core` is the SDK's own core."""


_TRIED_AGAIN = "gRPC call "
"""Begin of a log line that comes dozens of times a minute during an outage. It is dropped."""


class TimedMessages(Messages):
    """Messages that begin with the time in UTC; in JSON it is `time`."""

    def show(self, event: str, text: str, **fields: Any) -> None:
        """Print a message with its time."""
        if self.as_json:
            fields = {"time": _now(), **fields}
        super().show(event, text, **fields)

    def _write(self, text: str) -> None:
        super()._write(text if self.as_json else f"{_now()} {text}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def show_logs(messages: TimedMessages) -> None:
    """Show the worker's warnings as messages of the command line."""
    handler = _LogMessages(messages)
    for name in LOGGERS:
        logging.getLogger(name).addHandler(handler)


class _LogMessages(logging.Handler):
    def __init__(self, messages: TimedMessages) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(_TRIED_AGAIN):
            return
        trace = _trace(record)
        about = {"traceback": trace} if trace else {}
        text = record.getMessage()
        if trace and not self._messages.as_json:
            text = f"{text}\n{trace}"
        self._messages.show(record.levelname.lower(), text, logger=record.name, **about)


def _trace(record: logging.LogRecord) -> str:
    """The traceback as Python writes it; empty without an exception."""
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    return logging.Formatter().formatException(record.exc_info)
