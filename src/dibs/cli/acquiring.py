"""How `dibs run` acquires its lease: one quiet try, then a wait with messages."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from dibs.cli.naming import in_use
from dibs.cli.options import KINDS
from dibs.cli.voice import Voice
from dibs.cli.waiting import Speaker
from dibs.cli.warden import now
from dibs.cli.wording import holders, kind_of, printable, shown
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Status

if TYPE_CHECKING:
    from dibs.sync import Client, Lease, Lock, Semaphore, Waiting


def acquire(
    client: "Client",
    wanted: dict[str, Any],
    voice: Voice,
    on_lost: Callable[["Lease"], object],
    check: Callable[[], None],
) -> "Lease":
    """Acquire the lease that the options describe. Raises `AcquireTimeout`.

    While it waits, `check` is called from time to time; an exception from it ends the wait.
    """
    primitive = _primitive(client, wanted, on_lost)
    units = wanted["units"]
    if wanted["no_wait"]:
        return primitive.acquire(units=units, wait=0)
    began, is_away = now(), False
    try:
        lease = primitive.try_acquire(units=units)
    except BackendUnavailable as error:
        if primitive.config.wait is not None and _left(primitive, began) <= 0:
            raise
        voice.say("unavailable", f"still trying: {error}")
        lease, is_away = None, True
    if lease is not None:
        return lease
    wait = None if primitive.config.wait is None else max(_left(primitive, began), 0.0)

    def ask() -> None:
        client.status(wanted["name"], primitive.kind)

    with Speaker(voice, ask, is_away=is_away) as speaker:

        def tell(waiting: "Waiting") -> None:
            check()
            speaker.tell(waiting)

        return primitive.acquire(units=units, wait=wait, on_wait=tell)


def _left(primitive: "Lock | Semaphore", began: float) -> float:
    """Seconds left to wait; the quiet try counts."""
    wait: float = primitive.config.wait  # type: ignore[assignment]  # LockConfig has made it seconds
    return wait - (now() - began)


def _primitive(
    client: "Client", wanted: dict[str, Any], on_lost: Callable[["Lease"], object]
) -> "Lock | Semaphore":
    """A lock, or a semaphore where several may run or one is asked for.

    Options not given are left to the settings.
    """
    name = _text(wanted["name"])
    chosen = ("ttl", "wait", "priority", "note", "lock_delay")
    given = {key: wanted[key] for key in chosen if wanted[key] is not None}
    given["on_lost"] = on_lost
    given["label"] = printable(wanted["command"][0].rpartition("/")[2])
    try:
        if wanted["capacity"] > 1 or wanted["kind"] == "semaphore":
            return client.semaphore(name, capacity=wanted["capacity"], **given)
        return client.lock(name, **given)
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from error


def _text(name: bytes) -> str | bytes:
    """The name as text, if it is UTF-8: only those have settings in the environment."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


def warn_of_other_kinds(client: "Client", key: bytes, wanted: dict[str, Any], voice: Voice) -> None:
    """Warn if the same name is in use under another kind: they do not exclude each other."""
    kind, name = kind_of(key), key.partition(b":")[2]
    others = [other for other in KINDS if other != kind]
    try:
        found = in_use(client, name, others)
    except DibsError:
        return  # the lease itself is what matters
    for status in found:
        other = kind_of(status.key)
        voice.say(
            "warning",
            f"{shown(key)} is also in use as a {other} ({holders(status)}): a {kind} "
            f"does not exclude it. {_instead(status, wanted)}",
            kind=other,
        )


def _instead(status: Status, wanted: dict[str, Any]) -> str:
    """How to use the kind that is in use instead."""
    match kind_of(status.key):
        case "lock":
            given = {
                "--kind": wanted["kind"] is not None,
                "--capacity": wanted["capacity"] > 1,
                "--units": wanted["units"] > 1,
            }
            made_it = " and ".join(option for option, was_given in given.items() if was_given)
            return f"To use the lock, leave out {made_it}."
        case "semaphore" if status.capacity > 1:
            return f"To use the semaphore, add --capacity {status.capacity}."
        case "semaphore":
            return "To use the semaphore, add --kind semaphore."
        case _:
            return "Choose another name."
