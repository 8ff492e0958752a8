"""Where API keys are managed: in the service's records, or through a running server."""

import os
from typing import Protocol

import click

from dibs.cli import options
from dibs.cli.directories import configured_service
from dibs.cli.needing import needing
from dibs.cli.output import Shape
from dibs.cli.voice import Voice

_RECORDS_NAMED = tuple(f"DIBS_SERVER_{each}" for each in ("CONFIG", "RECORDS", "STORE"))
"""Any of these says where the records are: here is a server of theirs."""


class Office(Protocol):
    """Makes, lists and revokes keys; all of them as `dibs.server.keys_shapes` has them."""

    @property
    def place(self) -> str:
        """The URL at which the keys are, without any secret."""

    def create(self, wanted: Shape) -> Shape:
        """A new key, with its text."""

    def list(self, *, ended: bool) -> list[Shape]:
        """The keys that there are, on demand also those that have ended."""

    def revoke(self, key_id: str) -> Shape | None:
        """End a key; None if there is none of that id."""


def office(
    *, server: str | None, records: str | None, store: str | None, config: str | None, voice: Voice
) -> Office:
    """The one that the options mean, else the settings.

    Raises `UsageError` where they contradict each other.
    """
    beside = bool(records or store or config)
    if server is not None and beside:
        raise click.UsageError("give either --server, or --records, --store and --config")
    if server is not None:
        return _remote(server)
    name = options.store_asked()
    if name is not None and beside:
        raise click.UsageError(f"give either --store {name} before the verb, or a place after it")
    named = any(map(os.environ.get, _RECORDS_NAMED))
    if not beside and (name is not None or not named):
        service = configured_service()
        if service is not None:
            return _remote(service.url, service.place)
    return _local(records, store, config, voice)


def _remote(url: str, named_by: str = "") -> Office:
    with needing("http"):
        from dibs.cli.keys_remote import RemoteOffice
    return RemoteOffice(url, named_by)


def _local(records: str | None, store: str | None, config: str | None, voice: Voice) -> Office:
    with needing("server"):
        from dibs.cli.keys_local import local_office
    found, is_named = local_office(records, store, config)
    if not is_named:
        voice.say(
            "warning",
            f"using the keys in {found.place}, the default of `dibs serve`: for others give "
            "--server https://… or --records URL",
        )
    return found
