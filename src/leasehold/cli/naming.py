"""Which resource a bare name on the command line means."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from leasehold.cli.options import KINDS, Kind
from leasehold.cli.wording import kind_of, shown
from leasehold.model import Status

if TYPE_CHECKING:
    from leasehold.sync import Client


def find(client: "Client", name: bytes, kind: Kind | None) -> Status:
    """The status of what a name means: of that kind, or of the only kind that is in use.

    Raises a usage error where it is in use under several kinds.
    """
    if kind is not None:
        return client.status(name, kind)
    found = in_use(client, name, KINDS)
    if len(found) > 1:
        kinds = ", ".join(kind_of(status.key) for status in found)
        raise click.UsageError(
            f"{shown(found[0].key)!r} is in use under several kinds: {kinds}. Choose with --kind."
        )
    return found[0] if found else client.status(name)


def in_use(client: "Client", name: bytes, kinds: Iterable[Kind]) -> list[Status]:
    """What of that name is held or waited for."""
    statuses = [client.status(name, kind) for kind in kinds]
    return [status for status in statuses if status.holders or status.waiting or status.waiters]
