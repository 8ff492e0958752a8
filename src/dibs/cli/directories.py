"""Directories on the command line, and the service that knows them."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from dibs.cli import options
from dibs.cli.exits import needing
from dibs.cli.wording import printable
from dibs.stores.http.names import MARK, decoded, encoded

if TYPE_CHECKING:
    from dibs.cli.remote import Remote
    from dibs.settings import StoreSettings


def server[F: Callable[..., Any]](command: F) -> F:
    """The options `--server` (alias `--url`) and `--store`."""
    option = click.option(
        "--server",
        "--url",
        "server",
        metavar="URL",
        callback=options.before_or_after,
        help="The service, such as https://locks.example.com [DIBS_URL].",
    )
    return option(options.store_name(command))


in_base64 = click.option(
    "-B", "--base64", "is_base64", is_flag=True, help="DIR is given in URL-safe base64."
)

decode = click.option(
    "-D/ ",
    "--decode/--no-decode",
    "is_decoded",
    default=True,
    help="Print directories as text (the default), or in URL-safe base64.",
)

_RECORDS_NAMED = tuple(f"DIBS_SERVER_{each}" for each in ("CONFIG", "RECORDS", "LEASES"))
"""Any of these says where the records are: here is a server of theirs."""


def service(url: str | None) -> "Remote":
    """The service to use. Raises `UsageError` if none is given."""
    if url and options.store_asked():
        raise click.UsageError("give either --server or --store, not both")
    named = None if url else configured_service()
    found = url or (named.url if named else "")
    if not options.is_service(found):
        raise click.UsageError("no service given: use --server https://…, or set DIBS_URL to one")
    with needing("http"):
        from dibs.cli.remote import Remote
    return Remote(found)


def service_meant() -> "StoreSettings | None":
    """The service that the settings name, unless they say where its records are."""
    if options.store_asked() is None and any(map(os.environ.get, _RECORDS_NAMED)):
        return None
    return configured_service()


def configured_service() -> "StoreSettings | None":
    """The service that the settings or `--store` name; None if there is none."""
    found = _configured()
    return found if found is not None and options.is_service(found.url) else None


def configured_store_url() -> str:
    """The store that the settings name (`DIBS_URL`, …) if it is no service; else empty."""
    found = _configured()
    return "" if found is None or options.is_service(found.url) else found.url


def _configured() -> "StoreSettings | None":
    """The store that the settings or `--store` name."""
    from dibs.settings import configured_store

    name = options.store_asked()
    if name is not None and "://" in name:
        raise click.UsageError("--store takes a name in the settings: give a URL with --leases")
    found = configured_store(name)
    if found is None and name is not None:
        raise click.UsageError(f"no store {name!r} in the settings")
    return found


def segment(directory: str, *, is_base64: bool) -> str:
    """A directory in a path, with its slash; empty for `/`, which is everything."""
    if is_base64:
        try:
            raw = decoded(directory.removeprefix(MARK))
        except ValueError as error:
            raise click.UsageError(f"{directory!r} is {error}") from None
    else:
        raw = directory.encode("utf-8", "surrogateescape")
    raw = raw.removesuffix(b"/")
    return f"/{MARK}{encoded(raw)}/" if raw else ""


def shown(directory: str, *, is_decoded: bool) -> str:
    """A directory from a service's answer, for people."""
    if not is_decoded:
        return directory
    return printable(decoded(directory).decode("utf-8", "backslashreplace")) + "/"
