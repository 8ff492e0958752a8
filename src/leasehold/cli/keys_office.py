"""Where keys are given out: at the service's records themselves, or at a running server."""

from typing import Protocol

import click

from leasehold.cli.output import Shape


class Office(Protocol):
    """Makes, lists and revokes keys; all of them as `leasehold.server.keys_shapes` has them."""

    def create(self, wanted: Shape) -> Shape:
        """A new key, with its text."""

    def list(self, *, ended: bool) -> list[Shape]:
        """The keys that there are, on demand also those that have ended."""

    def revoke(self, key_id: str) -> Shape | None:
        """End a key; None if there is none of that id."""


def office(
    *, server: str | None, records: str | None, store: str | None, config: str | None
) -> Office:
    """The one that the options mean. Raises `UsageError` for options that exclude each other."""
    if server is not None:
        if records or store or config:
            raise click.UsageError("--server asks a running service: leave out the other places")
        from leasehold.cli.keys_remote import RemoteOffice

        return RemoteOffice(server)
    from leasehold.cli.keys_local import LocalOffice, records_url

    return LocalOffice(records_url(records, store, config))
