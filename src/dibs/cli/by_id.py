"""`dibs renew` and `dibs release`: leases that `acquire` made, by their id."""

import re
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal

import click

from dibs.cli import options
from dibs.cli.naming import base64_name, bytes_of
from dibs.cli.options import Kind
from dibs.cli.wording import shown, span
from dibs.config import optional_seconds, safe_ttl
from dibs.errors import LeaseLost
from dibs.locks.by_id import ManualLeases
from dibs.runtime.port import step

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


def unattended(client: "Client", kind: Kind, name: bytes) -> ManualLeases:
    """The leases of a resource, by their ids."""
    return ManualLeases(client.session.thread_runtime(), kind, name)


def with_id[T](
    client: "Client",
    kind: Kind | None,
    name: bytes,
    act: Callable[[ManualLeases], Coroutine[Any, Any, T]],
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


@click.command(
    epilog=options.examples("dibs renew db/migrate --ttl 5m -L 1BacdUiyei_Fk14QZRNvzzWT")
)
@click.argument("name", type=options.Spelt())
@lock_id
@click.option(
    "-T", "--ttl", required=True, metavar="TIME", help="The lease ends this time from now."
)
@base64_name
@options.kind
@options.store
@options.as_json
def renew(
    name: bytes,
    lock_id: str,
    ttl: str,
    is_base64: bool,
    kind: Kind | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Renew the lease on NAME with this id, for --ttl from now.

    A renewal never shortens a lease. Nothing renews it again: repeat the command in time. Exits with 76 if
    the lease has ended. Then stop your work: another holder may have NAME.
    """
    wanted, lease_id, plain = ttl_of(ttl), id_of(lock_id), bytes_of(name, is_base64)
    with options.open_client(url) as client:
        key, left = with_id(client, kind, plain, lambda leases: leases.renew(lease_id, wanted))
    if as_json:
        from dibs.cli.output import emit, name_shape

        emit(name_shape(key) | {"renewed": True, "ttl": wanted, "expires_in": round(left, 3)})
    else:
        kept = f" (the store keeps it for {span(wanted)})" if left <= wanted else ""
        print(f"renewed {shown(key)}: you can rely on it for {span(left)}{kept}")
    return 0


@click.command(epilog=options.examples("dibs release db/migrate -L 1BacdUiyei_Fk14QZRNvzzWT"))
@click.argument("name", type=options.Spelt())
@lock_id
@base64_name
@options.kind
@options.store
@options.as_json
def release(
    name: bytes, lock_id: str, is_base64: bool, kind: Kind | None, url: str | None, as_json: bool
) -> int:
    """Release the lease on NAME with this id, or leave the queue.

    Exits with 76 if the lease has already ended. To end another holder's lease, use `dibs revoke`.
    """
    lease_id, plain = id_of(lock_id), bytes_of(name, is_base64)
    with options.open_client(url) as client:
        key, _ = with_id(client, kind, plain, lambda leases: leases.release(lease_id))
    if as_json:
        from dibs.cli.output import emit, name_shape

        emit(name_shape(key) | {"released": True})
    else:
        print(f"released {shown(key)}")
    return 0
