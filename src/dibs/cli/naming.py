"""Names on the command line: base64, and which kind of resource a bare name means."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from dibs.cli import options
from dibs.cli.options import KINDS, Kind
from dibs.cli.wording import kind_of, shown
from dibs.model import Status

if TYPE_CHECKING:
    from dibs.sync import Client


base64_name = click.option(
    "-B", "--base64", "is_base64", is_flag=True, help="NAME or PREFIX is URL-safe base64."
)

decode = click.option(
    "-D/ ",
    "--decode/--no-decode",
    "is_decoded",
    default=None,
    help="Print names as text, or in URL-safe base64.",
)


def bytes_of(name: bytes, is_base64: bool) -> bytes:
    """The name that is meant."""
    if is_base64:
        from dibs.stores.http.names import MARK, decoded

        try:
            name = decoded(name.decode("ascii").removeprefix(MARK).rstrip("="))
        except ValueError:
            raise click.UsageError("-B: NAME must be URL-safe base64") from None
    if len(name) > options.Name.longest:
        raise click.UsageError(f"a name must be 1 to 512 bytes long; this one is {len(name)}")
    return name


def written(key: bytes, is_decoded: bool | None) -> str:
    """A key's name as it is to be shown: as text, unless that is not wanted."""
    if is_decoded is False:
        from dibs.stores.http.names import encoded

        return encoded(key.partition(b":")[2])
    return shown(key)


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
            f"several kinds of resource are called {shown(found[0].key)!r}: {kinds}. "
            "Choose one with --kind."
        )
    return found[0] if found else client.status(name)


def in_use(client: "Client", name: bytes, kinds: Iterable[Kind]) -> list[Status]:
    """What of that name is held or waited for."""
    statuses = [client.status(name, kind) for kind in kinds]
    return [status for status in statuses if status.holders or status.waiting or status.waiters]
