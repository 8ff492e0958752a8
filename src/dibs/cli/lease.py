"""`dibs acquire`, `renew`, `release` and `revoke`: leases that outlive a command, and the end of others'."""

import re
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from socket import gethostname
from typing import TYPE_CHECKING, Any, Literal

import click

from dibs.cli import options
from dibs.cli.exits import FREE, NOT_ACQUIRED
from dibs.cli.options import KINDS, ClickDecorator, Kind, base64_name, find, user_name
from dibs.cli.output import Messages, counted, emit, kind_of, name_shape, needs_stdout, shown, span
from dibs.cli.signals import Interrupted, Signals
from dibs.cli.statuses import holders
from dibs.cli.waiting import WaitProgress
from dibs.config import optional_seconds, safe_ttl
from dibs.errors import BackendUnavailable, LeaseLost
from dibs.locks.by_id import ManualLeases
from dibs.model import Status
from dibs.runtime.port import step

if TYPE_CHECKING:
    from dibs.locks.by_id import ManualLease
    from dibs.sync import Client


_FEWEST = 22
"""Characters of a lease id with 128 random bits."""


@click.command(
    epilog=options.examples(
        "dibs acquire db/migrate --ttl 5m",
        "dibs renew db/migrate --ttl 5m -L LOCK-ID",
        "dibs release db/migrate -L LOCK-ID",
    )
)
@click.argument("name", type=options.Name())
@click.option(
    "-T", "--ttl", required=True, metavar="TIME", help="The lease ends after this time, such as 5m."
)
@click.option("-w", "--wait", metavar="TIME", help="Wait in the queue for this time [do not wait].")
@click.option(
    "--owner",
    "--client-id",
    "client_id",
    default="",
    metavar="TEXT",
    help="The holder's name, shown to others [host and user].",
)
@click.option(
    "-L",
    "--lock-id",
    metavar="ID",
    help="Use this lease id, 22 to 64 random characters: then you can safely repeat the command.",
)
@options.amounts
@base64_name
@options.store
@options.as_json
def acquire(as_json: bool, **wanted: Any) -> int:
    """Acquire a lease on NAME and print its id.

    NOTHING RENEWS the lease after this command ends. It ends after --ttl, even if you still work. Call
    `dibs renew` well before that, and `dibs release` when you are done. To hold NAME while a command
    runs, use `dibs run`: it renews the lease, and stops the command if the lease is lost.

    The output is the lease id (LOCK-ID) and the fencing token (SEQUENCER). Keep the id secret: with it
    anyone can renew and release.

    Exit codes: 75 not acquired, 69 store unreachable, 77 access denied, 64 usage error, 128+N stopped
    by signal N while waiting.
    """
    needs_stdout("the lease id would be lost")
    _check(wanted)
    messages, signals = Messages(as_json), Signals()
    signals.install()
    try:
        return _acquire(wanted, messages, signals, as_json)
    except BackendUnavailable as error:
        if not error.busy:
            raise
        messages.fail(error, NOT_ACQUIRED)  # another transaction has the row
        return NOT_ACQUIRED
    except RuntimeError:
        signals.check()  # within the standard library's locks an interrupt may become this
        raise


def _check(wanted: dict[str, Any]) -> None:
    """Raises a usage error for options that contradict each other."""
    options.check_amounts(wanted)
    given = wanted["lock_id"]
    if given is not None and not _FEWEST <= len(id_of(given)) <= 64:
        raise click.UsageError(
            "--lock-id must be 22 to 64 random characters; without it Dibs makes one"
        )


def _acquire(wanted: dict[str, Any], messages: Messages, signals: Signals, as_json: bool) -> int:
    kind: _Acquirable = wanted["kind"] or ("semaphore" if wanted["capacity"] > 1 else "lock")
    ttl, wait, name = ttl_of(wanted["ttl"]), wait_of(wanted["wait"]), wanted["name"]
    person = "/".join(filter(None, (gethostname(), user_name())))  # no process: this one ends
    with options.open_client() as client:
        leases = unattended(client, kind, name)
        ask = None if wait == 0 else partial(client.status, name, kind)
        try:
            with WaitProgress(messages, ask, check=signals.check) as progress:
                asking = leases.acquire(
                    wanted["client_id"] or person,
                    ttl,
                    units=wanted["units"],
                    capacity=wanted["capacity"],
                    note=wanted["note"] or "",
                    priority=wanted["priority"] or 0,
                    wait=wait,
                    lease_id=wanted["lock_id"],
                    on_wait=progress.tell,
                )
                held = step(asking)
            early = signals.hold()
        except Interrupted:
            leases.give_up()  # it may have been granted in this moment
            raise
        if early is not None:
            step(leases.release(held.id))
            raise Interrupted(early)
        try:
            _print_lease(held, ttl, as_json)
        except OSError:
            step(leases.release(held.id))  # the id was not printed, so no one can release it later
            raise
    if messages.is_live:
        messages.show("acquired", _advice(held, ttl))
    return 0


def _print_lease(held: "ManualLease", ttl: float, as_json: bool) -> None:
    if not as_json:
        print(f"LOCK-ID: {held.id}\nSEQUENCER: {held.token}", flush=True)
        return
    emit(
        name_shape(held.key)
        | {
            "lease_id": held.id,
            "token": held.token,
            "lock_id": held.id,
            "sequencer": held.token,
            "ttl": ttl,
            "expires_in": round(held.remaining, 3),
            "slots": list(held.slots),
        }
    )


def _advice(held: "ManualLease", ttl: float) -> str:
    name = shown(held.key)
    return (
        f"you hold {name} for {span(held.remaining)}; nothing renews it. Before it ends:\n"
        f"  dibs renew {name} --ttl {ttl:g} --lock-id {held.id}\n"
        f"  dibs release {name} --lock-id {held.id}"
    )


type _Acquirable = Literal["lock", "semaphore"]

lock_id: ClickDecorator = click.option(
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
@click.argument("name", type=options.Name())
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
    kind: Kind | None,
    as_json: bool,
) -> int:
    """Renew the lease on NAME with this id, for --ttl from now.

    A renewal never shortens a lease. Nothing renews it again: repeat the command in time. Exits with 76 if
    the lease has ended. Then stop your work: another holder may have NAME.
    """
    wanted, lease_id = ttl_of(ttl), id_of(lock_id)
    with options.open_client() as client:
        key, left = with_id(client, kind, name, lambda leases: leases.renew(lease_id, wanted))
    if as_json:
        emit(name_shape(key) | {"renewed": True, "ttl": wanted, "expires_in": round(left, 3)})
    else:
        kept = f" (the store keeps it for {span(wanted)})" if left <= wanted else ""
        print(f"renewed {shown(key)}: you can rely on it for {span(left)}{kept}")
    return 0


@click.command(epilog=options.examples("dibs release db/migrate -L 1BacdUiyei_Fk14QZRNvzzWT"))
@click.argument("name", type=options.Name())
@lock_id
@base64_name
@options.kind
@options.store
@options.as_json
def release(name: bytes, lock_id: str, kind: Kind | None, as_json: bool) -> int:
    """Release the lease on NAME with this id, or leave the queue.

    Exits with 76 if the lease has already ended. To end another holder's lease, use `dibs revoke`.
    """
    lease_id = id_of(lock_id)
    with options.open_client() as client:
        key, _ = with_id(client, kind, name, lambda leases: leases.release(lease_id))
    if as_json:
        emit(name_shape(key) | {"released": True})
    else:
        print(f"released {shown(key)}")
    return 0


@click.command(epilog=options.examples("dibs revoke nightly --reason 'host is broken'"))
@click.argument("name", type=options.Name())
@click.option("--reason", required=True, metavar="TEXT", help="The reason; the holder gets it.")
@click.option(
    "--now",
    "at_once",
    is_flag=True,
    help="Free NAME at once. This gives up exclusion: the holder may still be running.",
)
@options.kind
@options.store
@options.as_json
def revoke(name: bytes, reason: str, at_once: bool, kind: Kind | None, as_json: bool) -> int:
    """End the lease of another holder of NAME.

    The holder cannot renew any more. NAME is free when the lease runs out, or at once with --now.

    Exit codes: 0 revoked, 1 NAME was not held.
    """
    with options.open_to_look() as client:
        status = find(client, name, kind)
        found = next(each for each in KINDS if each == kind_of(status.key))
        count = client.revoke(name, reason=reason, now=at_once, kind=found)
    ends_in = 0.0 if at_once else max((hold.expires_in for hold in status.holders), default=0.0)
    is_known = at_once or status.holding <= len(status.holders)
    if at_once and count:
        Messages(as_json).show("warning", _danger(status))
    if as_json:
        emit(
            name_shape(status.key)
            | {"revoked": count, "ends_in": round(ends_in, 3) if is_known else None}
        )
    else:
        print(_revoked(status, count, ends_in if is_known else None))
    return 0 if count else FREE


def _danger(status: Status) -> str:
    return (
        f"{shown(status.key)} was {holders(status)}. A holder may still be running together with the "
        "next one. Only a resource that checks fencing tokens is protected now"
    )


def _revoked(status: Status, count: int, ends_in: float | None) -> str:
    name = shown(status.key)
    if not count:
        return f"{name} is not held"
    leases = counted(count, "lease")
    if ends_in is None:
        return f"revoked {leases} of {name}: free when the last of them ends"
    until = f"free within {span(ends_in)}; if its holder is dead, --now frees it at once"
    return f"revoked {leases} of {name}: {until if ends_in else 'free now'}"
