"""A third party's store with a bug: SQLite's, with what it is told or what it answers changed.

`planted:////path.db?bug=two-at-once`. A password may stand before the path: nothing needs it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dibs.clock import Clock
from dibs.model import (
    Acquire,
    Command,
    Granted,
    Notification,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Resize,
)
from dibs.stores.sqlite import SqliteStore
from tests.changed_store import ChangedStore

PASSWORD = "hunter2"


def announce(folder: Path) -> None:
    """Make a folder one that holds a package which brings the scheme `planted`."""
    info = folder / "planted-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[dibs.stores]\nplanted = tests.torture.planted:PlantedStore\n"
    )


@dataclass
class Bug:
    command: Callable[[Any], Command] = lambda command: command
    reply: Callable[[Any, Any], Reply] = lambda reply, command: reply
    push: Callable[[Notification], Notification] = lambda push: push


def asked(kind: Any, change: Callable[[Any], Command]) -> Callable[[Any], Command]:
    """Commands of that kind are changed."""
    return lambda command: change(command) if isinstance(command, kind) else command


def one_more_of(what: bytes) -> Bug:
    """One more may hold it, where the key has that in it."""
    return Bug(
        asked(Acquire, lambda each: replace(each, capacity=each.capacity + (what in each.key)))
    )


def downgrades_release(command: Resize) -> Command:
    return Release(command.key, command.id) if command.units == 1 else command


def told_as_downgrades(reply: Reply, command: Command) -> Reply:
    if isinstance(command, Resize) and isinstance(reply, Released):
        return Granted(0, (), 0.0)
    return reply


def of_grants(change: Callable[[Any], Any]) -> Bug:
    """What is changed in each grant, whether it is answered or notified."""
    return Bug(
        reply=lambda reply, _: change(reply) if isinstance(reply, Granted) else reply,
        push=lambda push: change(push) if push.token else push,
    )


def keeps(times: float) -> Bug:
    """A store that keeps leases for another time than it says."""

    def told(reply: Reply, command: Command) -> Reply:
        if isinstance(reply, Granted | Renewed) and isinstance(command, Acquire | Renew):
            return replace(reply, ttl=command.ttl)
        return reply

    return Bug(asked(Acquire | Renew, lambda each: replace(each, ttl=each.ttl * times)), told)


def crash_where_it_would_queue(command: Acquire) -> Command:
    if command.queue:
        raise ZeroDivisionError("planted")
    return command


BUGS = {
    "none": Bug(),
    "two-at-once": one_more_of(b""),
    "forgets-early": keeps(0.3),
    "the-dead-hold-on": keeps(1000),
    "tokens-fall": of_grants(lambda grant: replace(grant, token=(1 << 53) - grant.token)),
    "slots-repeat": of_grants(lambda grant: replace(grant, slots=tuple(range(len(grant.slots))))),
    "a-downgrade-gives-all-up": Bug(asked(Resize, downgrades_release), told_as_downgrades),
    "too-soon": Bug(asked(Release, lambda each: replace(each, retain=0.0))),
    "two-lead": one_more_of(b"leader:"),
    "not-all": one_more_of(b"/allof-"),
    "crashes": Bug(asked(Acquire, crash_where_it_would_queue)),
}


class PlantedStore(ChangedStore):
    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        parts = urlsplit(url)
        super().__init__(SqliteStore(f"sqlite:///{parts.path}", clock=clock))
        self._bug = BUGS[parse_qs(parts.query).get("bug", ["none"])[0]]
        self.url = url.replace(PASSWORD, "***")

    def commands(self, commands: Sequence[Command]) -> Sequence[Command]:
        return [self._bug.command(each) for each in commands]

    def replies(self, replies: Sequence[Reply], commands: Sequence[Command]) -> Sequence[Reply]:
        return [self._bug.reply(*each) for each in zip(replies, commands, strict=True)]

    def pushes(self, pushes: Sequence[Notification]) -> Sequence[Notification]:
        return [self._bug.push(each) for each in pushes]
