"""`dibs demo`: a lock service with workers to watch."""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import click

from dibs.cli import options
from dibs.cli.exits import needing
from dibs.cli.output import emit
from dibs.config import seconds

MOST = 200


@click.command(epilog=options.examples("dibs demo", "dibs demo --for 2m --workers 40"))
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
@options.as_json
def demo(workers: int, lasts: str | None, port: int, as_json: bool) -> int:
    """Run a lock service with workers on this machine, to watch.

    It runs until you press Ctrl-C. The workers compete for locks, share a pool, read and write, elect a
    leader and run tasks. Some are killed while they hold a lease, and one forgets to renew. First the
    demo prints a link for your browser. It leaves nothing behind.
    """
    with needing("server"):
        from dibs.cli.demo.show import Show
        from dibs.server.config import ServerConfig
    try:
        limit = None if lasts is None else seconds(lasts, "--for")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    began = time.monotonic()

    def tell(event: str, text: str, **fields: Any) -> None:
        if as_json:
            emit({"event": event, **(fields or {"at": round(time.time(), 3), "message": text})})
        else:
            print(text if fields else f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    with TemporaryDirectory(prefix="dibs-demo-", ignore_cleanup_errors=True) as folder:
        store = f"sqlite:///{quote(str(Path(folder) / 'leases.db'))}"
        config = ServerConfig(
            listen=f"127.0.0.1:{port}", leases=store, sign_in=True, drain_time=1.0
        )

        async def play() -> None:
            await Show(config, tell).run(workers, limit)

        asyncio.run(play())
    return 0
