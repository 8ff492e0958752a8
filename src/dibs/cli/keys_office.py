"""Where keys are given out: at the service's records themselves, or at a running server."""

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
        raise click.UsageError("--server asks a running service: leave out the other places")
    if server is not None:
        return _remote(server)
    name = options.store_asked()
    if name is not None and beside:
        raise click.UsageError(f"--store {name} before the verb, and a place behind it: choose one")
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
            f"no service and no records are named, so these are the keys in {found.place}, where "
            "`dibs serve` has them by itself: for others say --server https://… or --records URL",
        )
    return found
