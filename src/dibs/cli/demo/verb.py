"""`dibs demo`: a lock service with workers to watch."""

import asyncio
import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from dibs.cli import options
from dibs.cli.needing import needing
from dibs.config import seconds

if TYPE_CHECKING:
    from dibs.cli.demo.show import Opened

MOST = 200


@click.command()
@click.option(
    "--workers",
    type=click.IntRange(1, MOST),
    default=20,
    show_default=True,
    metavar="N",
    help="Number of workers.",
)
@click.option("--for", "lasts", metavar="TIME", help="Stop after this time, such as 30s or 5m.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Port of the service [any free one].",
)
@click.option(
    "--folder",
    metavar="FOLDER",
    help="Keep leases and keys here [a temporary folder].",
)
@options.as_json
def demo(workers: int, lasts: str | None, port: int, folder: str | None, as_json: bool) -> int:
    """Run a lock service with workers on this machine, to watch.

    It runs until you press Ctrl-C. The workers compete for locks, share a pool, read and write, elect a
    leader and run tasks. Some are killed while they hold a lease, and one forgets to renew. First the
    demo prints a link for your browser. It leaves nothing behind, except a --folder.
    """
    with needing("server"):
        from dibs.cli.demo.show import Show
        from dibs.server.config import ServerConfig
    limit = None if lasts is None else _limit(lasts)
    _check(port)
    voice = _Json() if as_json else _Plain()
    with _kept(folder) as place:
        store = f"sqlite:///{quote(str(place / 'leases.db'))}"
        config = ServerConfig(listen=f"127.0.0.1:{port}", store=store, sign_in=True, drain_time=1.0)

        async def play() -> None:
            await Show(config, workers, voice.tell).run(voice.opened, limit)

        asyncio.run(play())
    return 0


def _limit(text: str) -> float:
    try:
        return seconds(text, "--for")
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _check(port: int) -> None:
    """Raises `UsageError` if the port is not free."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise click.UsageError(
            f"cannot listen on port {port}: {why}; without --port the demo takes a free one"
        ) from error


@contextmanager
def _kept(folder: str | None) -> Generator[Path]:
    """Where the store lies: there, or in a folder that goes away with the demo."""
    if folder is None:
        with TemporaryDirectory(prefix="dibs-demo-", ignore_cleanup_errors=True) as found:
            yield Path(found)
        return
    place = Path(folder).absolute()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"cannot create --folder {folder}: {error.strerror}") from error
    yield place


class _Plain:
    """Lines for people, on stdout."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def opened(self, found: "Opened") -> None:
        self._began = time.monotonic()
        print(
            f"Started a lock service, and {found.workers} workers in {found.processes} processes.\n\n"
            "Open this link in your browser within 10 minutes (it works once):\n\n"
            f"  {found.sign_in_url}\n\n"
            "Or watch in another shell:\n\n"
            f"  export DIBS_URL={found.url} DIBS_API_KEY={found.key}\n"
            "  dibs top\n\n"
            "Press Ctrl-C to stop.\n",
            flush=True,
        )

    def tell(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)


class _Json:
    """One object a line."""

    def opened(self, found: "Opened") -> None:
        from dibs.cli.output import emit

        emit({"event": "listening", **found._asdict()})

    def tell(self, text: str) -> None:
        from dibs.cli.output import emit

        emit({"event": "told", "at": round(time.time(), 3), "message": text})
