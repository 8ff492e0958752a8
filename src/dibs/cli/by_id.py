"""Shared by `acquire`, `renew` and `release`: leases known by their id, which nothing renews."""

import re
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal

import click

from dibs.cli.options import Kind
from dibs.config import optional_seconds, safe_ttl
from dibs.errors import LeaseLost
from dibs.primitives.by_id import Unattended
from dibs.runtime.step import step

if TYPE_CHECKING:
    from dibs.sync import Client

type Acquirable = Literal["lock", "semaphore"]

lock_id = click.option(
    "-L",
    "--lock-id",
    required=True,
    metavar="ID",
    envvar="DIBS_LOCK_ID",
    help="The lease id that `acquire` printed; - reads it from stdin. Default: DIBS_LOCK_ID, "
    "which `ps` does not show.",
)

_ID = re.compile(r"[A-Za-z0-9_-]+")


def id_of(given: str) -> str:
    """The lease id, from the command line or from stdin."""
    lease_id = sys.stdin.readline().strip() if given == "-" else given
    if not _ID.fullmatch(lease_id):
        raise click.UsageError("--lock-id must be letters, digits, - and _, as `acquire` prints it")
    return lease_id


def ttl_of(given: str) -> float:
    """A ttl in seconds. Raises `UnsafeTiming` for one that is too short."""
    try:
        return safe_ttl(given)
    except (ValueError, TypeError) as error:
        raise click.UsageError(f"--ttl: {error}") from error


def wait_of(given: str | None) -> float | None:
    """How long to wait, in seconds; 0 without `--wait`."""
    try:
        return 0.0 if given is None else optional_seconds(given, "wait")
    except (ValueError, TypeError) as error:
        raise click.UsageError(f"--wait: {error}") from error


def unattended(client: "Client", kind: Kind, name: bytes) -> Unattended:
    """The leases of a resource, by their ids."""
    return Unattended(client.hub.thread_runtime(), kind, name)


def with_id[T](
    client: "Client",
    kind: Kind | None,
    name: bytes,
    act: Callable[[Unattended], Coroutine[Any, Any, T]],
) -> tuple[bytes, T]:
    """Apply `act` to the lease, and return its key too: users need not repeat the kind.

    Raises `LeaseLost` if it has ended.
    """
    kinds: tuple[Kind, ...] = ("lock", "semaphore") if kind is None else (kind,)
    lost: list[LeaseLost] = []
    for each in kinds:
        leases = unattended(client, each, name)
        try:
            return leases.key, step(act(leases))
        except LeaseLost as error:
            lost.append(error)
    raise lost[0]
