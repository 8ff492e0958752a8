"""`dibs serve`: the lock service."""

import asyncio
from typing import TYPE_CHECKING, Any

import click

from dibs.cli import options
from dibs.cli.exits import needing
from dibs.cli.options import configured_store_url
from dibs.cli.output import Messages, emit, needs_stdout

if TYPE_CHECKING:
    from dibs.server.config import ServerConfig
    from dibs.server.main import Server


@click.command(
    epilog=options.examples(
        "dibs serve --leases redis://cache", "dibs serve --config /etc/dibs/server.toml"
    )
)
@click.option("--config", metavar="FILE", help="A TOML file [DIBS_SERVER_CONFIG].")
@click.option(
    "--leases",
    metavar="URL",
    help="Where leases are kept [DIBS_URL, or a SQLite file in your home directory].",
)
@click.option(
    "--records",
    metavar="URL",
    help="Where API keys, restrictions and the audit log are kept [with the leases].",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address to listen on [127.0.0.1:5327]. Port 0 takes a free one.",
)
@click.option("--tls-cert", metavar="FILE", help="Certificate chain (PEM).")
@click.option("--tls-key", metavar="FILE", help="Private key (PEM).")
@click.option(
    "--allow-plain-http",
    is_flag=True,
    default=None,
    help="Serve other machines without TLS, behind a proxy that terminates it.",
)
@click.option(
    "--sign-in",
    is_flag=True,
    default=None,
    help="Print a link that signs one browser in to the dashboard, as administrator, within 10 minutes.",
)
@click.option(
    "--log-format",
    type=click.Choice(("text", "json")),
    help="Log each request to stderr [only errors, as text].",
)
@options.store_name
@options.as_json
def serve(config: str | None, as_json: bool, **given: Any) -> int:
    """Run the lock service: HTTP API, API keys, audit log and dashboard.

    Each option can also be set in the environment (DIBS_SERVER_LEASES, …) or in the file. The first
    start, on this machine only, creates an administrator API key and prints it once. On SIGTERM the
    server finishes its requests and exits with 0.
    """
    with needing("server"):
        from dibs.server.config import read_config
        from dibs.server.main import new_loop
        from dibs.server.main import serve as run
    settings = read_config(config, given, default_store=configured_store_url())
    unseen = ""

    def tell(server: "Server") -> None:
        nonlocal unseen
        unseen = server.first_key or ""
        if unseen:
            needs_stdout("the administrator API key would be lost")
        (_print_json if as_json else _print_text)(server)
        unseen = ""

    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(run(settings, tell))
    finally:
        if unseen:
            _take_back(unseen, settings.records_url, Messages(as_json))
    return 0


def _take_back(key: str, records_url: str, messages: Messages) -> None:
    """Revoke a first key that was not printed; the next start creates another."""
    from dibs.cli.keys import take_back
    from dibs.cli.keys_local import LocalKeys
    from dibs.server.auth.credentials import id_of

    take_back(LocalKeys(records_url), id_of(key), messages)


def _print_text(server: "Server") -> None:
    """Print the default store if it is used, a new administrator key, and the address."""
    if url := _not_said(server.config):
        keys_too = " and keys" if server.config.records_url == url else ""
        print(f"Leases{keys_too}: {url}")
    if server.first_key:
        print(f"Created an administrator API key. It is shown only once: {server.first_key}")
    print(f"Listening on {server.url}", flush=True)
    if server.sign_in_url:
        print(f"Dashboard, for one sign-in within 10 minutes: {server.sign_in_url}", flush=True)
    else:
        print("Dashboard: use an API key (`dibs keys create`), or --sign-in for a link", flush=True)


def _print_json(server: "Server") -> None:
    url = _not_said(server.config)
    leases = {"leases": url} if url else {}
    first = {"first_key": server.first_key} if server.first_key else {}
    sign_in = {"sign_in_url": server.sign_in_url} if server.sign_in_url else {}
    emit({"event": "listening", "url": server.url, **leases, **first, **sign_in})


def _not_said(config: "ServerConfig") -> str:
    """The default store's URL; empty if one was configured."""
    return "" if config.leases or config.placement else config.stores[0].url
