"""How `dibs run` comes by its lease: one quiet try, and then a wait that it talks about."""

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
    """The lease that the options ask for. Raises `AcquireTimeout` where it was not to be had.

    While it waits, `check` is called from time to time; what it raises ends the wait.
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
        voice.say("unavailable", f"trying on: {error}")
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
    """Of the time that it may wait; the quiet try is a part of it."""
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
    """A name of text has settings of its own in the environment; other bytes have none."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


def warn_of_other_kinds(client: "Client", key: bytes, wanted: dict[str, Any], voice: Voice) -> None:
    """Say so where the same name is in use under another kind: they don't exclude each other."""
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
            f"{shown(key)} is in use as a {other} too ({holders(status)}): a {kind} "
            f"does not exclude that. {_instead(status, wanted)}",
            kind=other,
        )


def _instead(status: Status, wanted: dict[str, Any]) -> str:
    """How to have what is in use, rather than what was wanted."""
    match kind_of(status.key):
        case "lock":
            given = {
                "--kind": wanted["kind"] is not None,
                "--capacity": wanted["capacity"] > 1,
                "--units": wanted["units"] > 1,
            }
            made_it = " and ".join(option for option, was_given in given.items() if was_given)
            return f"Leave out {made_it} if that is meant."
        case "semaphore" if status.capacity > 1:
            return f"Say --capacity {status.capacity} if that is meant."
        case "semaphore":
            return "Say --kind semaphore if that is meant."
        case _:
            return "Take another name."
