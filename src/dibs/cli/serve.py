"""`dibs serve`: the lock service."""

import asyncio
from typing import TYPE_CHECKING, Any

import click

from dibs.cli import options
from dibs.cli.directories import configured_store_url
from dibs.cli.streams import needs_stdout
from dibs.cli.voice import Voice
from dibs.errors import NotConfigured

if TYPE_CHECKING:
    from dibs.server.config import ServerConfig
    from dibs.server.serve import Server

_NEEDED = "the service needs an extra: pip install 'dibs[server]'"


@click.command()
@click.option("--config", metavar="FILE", help="A TOML file; else DIBS_SERVER_CONFIG.")
@click.option(
    "--store",
    metavar="URL",
    help="Where leases are kept. Without: DIBS_URL, or a SQLite file of this user.",
)
@click.option(
    "--records",
    metavar="URL",
    help="Where keys, restrictions and the audit are kept. Without: with the leases.",
)
@click.option(
    "--listen", metavar="HOST:PORT", help="Without: 127.0.0.1:5327. Port 0 takes any that is free."
)
@click.option("--tls-cert", metavar="FILE", help="A certificate, with those that it stands on.")
@click.option("--tls-key", metavar="FILE", help="Its private key.")
@click.option(
    "--allow-plain-http",
    is_flag=True,
    default=None,
    help="Serve other machines without TLS: for a proxy in front that does it.",
)
@click.option(
    "--sign-in",
    is_flag=True,
    default=None,
    help="Print a link that signs one browser in at the dashboard, as an administrator, for 10 minutes.",
)
@click.option(
    "--log-format",
    type=click.Choice(("text", "json")),
    help="Log to stderr, one line a request. Without: only what goes wrong.",
)
@options.as_json
def serve(config: str | None, as_json: bool, **given: Any) -> int:
    """Serve locks over HTTP, on any store, until asked to end.

    Every option may stand in the environment too (DIBS_SERVER_STORE, …) or in the file. As long as
    there is no key it listens on this machine only, and makes an administrator's key, which it shows once,
    and beside it a link to the dashboard.
    On SIGTERM it lets requests come to their end, and exits with 0.
    """
    try:
        from dibs.server.config import read_config
        from dibs.server.serve import serve as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dibs"):
            raise
        raise NotConfigured(f"{_NEEDED} ({error.name} is missing)") from error
    settings = read_config(config, given, default_store=configured_store_url())
    unseen = ""

    def tell(server: "Server") -> None:
        nonlocal unseen
        unseen = server.first_key or ""
        if unseen:
            needs_stdout("nobody would ever see the first administrator's key")
        (_tell_json if as_json else _tell)(server)
        unseen = ""

    try:
        asyncio.run(run(settings, tell))
    finally:
        if unseen:
            _take_back(unseen, settings.records_url, Voice(as_json))
    return 0


def _take_back(key: str, records_url: str, voice: Voice) -> None:
    """Nobody has seen the first key: with it revoked the next start makes another."""
    from dibs.cli.keys_local import LocalOffice
    from dibs.cli.keys_unseen import take_back
    from dibs.server.secrets import id_of

    take_back(LocalOffice(records_url), id_of(key) or "", voice)


def _tell(server: "Server") -> None:
    """Where leases lie, if nobody said so; the first key, if there was none; where it listens."""
    if url := _not_said(server.config):
        keys_too = " and keys" if server.config.records_url == url else ""
        print(f"Leases{keys_too}: {url}")
    if server.first_key:
        print(f"There was no key. An administrator's, shown this once: {server.first_key}")
    print(f"Listening on {server.url}", flush=True)
    if server.sign_in_url:
        print(f"The dashboard, for one sign-in within 10 minutes: {server.sign_in_url}", flush=True)


def _tell_json(server: "Server") -> None:
    from dibs.cli.output import emit

    url = _not_said(server.config)
    store = {"store": url} if url else {}
    first = {"first_key": server.first_key} if server.first_key else {}
    sign_in = {"sign_in_url": server.sign_in_url} if server.sign_in_url else {}
    emit({"event": "listening", "url": server.url, **store, **first, **sign_in})


def _not_said(config: "ServerConfig") -> str:
    """The store's URL, where none was named; else nothing."""
    return "" if config.store or config.placement else config.stores[0].url
