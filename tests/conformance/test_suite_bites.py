"""The suite is worth passing: each store here has one bug, and the suite refuses it."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import DibsError
from dibs.model import (
    Acquire,
    Command,
    Gone,
    Granted,
    Inspect,
    Lost,
    Notification,
    Page,
    Queued,
    Refused,
    Release,
    Renew,
    Renewed,
    Reply,
    Resize,
    Revoke,
    Status,
)
from dibs.stores.port import BlockingConnection, Store
from dibs.stores.registry import store_for
from dibs.testing import ManualClock
from dibs.testing.conformance import BackendConformance, World
from tests.changed_store import ChangedBlockingConnection, ChangedStore

pytestmark = pytest.mark.once  # servers and searches are the same for each version of Python

type Apply = Callable[[Command], Reply]
type Bug = Callable[[Command, Apply], Reply]


class BuggyConnection(ChangedBlockingConnection):
    """Sees each command alone, and may change what comes of it."""

    def __init__(self, store: ChangedStore, inner: BlockingConnection, bug: Bug) -> None:
        super().__init__(store, inner)
        self._bug = bug

    def apply(self, commands: Sequence[Command], timeout: float) -> Sequence[Reply]:
        return [self._bug(each, lambda c: self._inner.apply([c], timeout)[0]) for each in commands]


class BuggyStore(ChangedStore):
    def __init__(self, store: Store, bug: str) -> None:
        super().__init__(store)
        self._bug = bug

    def pushes(self, pushes: Sequence[Notification]) -> Sequence[Notification]:
        return () if self._bug == "drops pushes" else pushes

    def page(self, page: Page) -> Page:
        return replace(page, cursor=None) if self._bug == "one page only" else page

    def blocking_connection(self) -> BlockingConnection:
        bug = BUGS.get(self._bug, sound)
        return BuggyConnection(self, self.inner.blocking_connection(), bug)


# ---- the bugs -------------------------------------------------------------------------------------


def sound(command: Command, apply: Apply) -> Reply:
    return apply(command)


def key(change: Callable[[bytes], bytes]) -> Bug:
    return lambda command, apply: apply(replace(command, key=change(command.key)))


def commands(kind: type[Command], change: Callable[[Any], Command]) -> Bug:
    return lambda command, apply: apply(change(command) if isinstance(command, kind) else command)


def replies(kind: type[Reply], change: Callable[[Any, Any], Reply]) -> Bug:
    def changed(command: Command, apply: Apply) -> Reply:
        reply = apply(command)
        return change(reply, command) if isinstance(reply, kind) else reply

    return changed


ARRIVALS = count(1)


def revives_the_expired(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    if isinstance(command, Renew) and reply == Lost("expired"):
        again = apply(Acquire(command.key, command.id, "revived", command.ttl))
        return Renewed(command.ttl) if isinstance(again, Granted) else reply
    return reply


def ignores_repeats(command: Command, apply: Apply) -> Reply:
    """A repeated Acquire is answered, but renews nothing."""
    if isinstance(command, Acquire):
        status = apply(Inspect(command.key))
        assert isinstance(status, Status)
        mine = [each for each in status.holders if each.owner == command.owner]
        if mine and mine[0].state == "held":
            return Granted(mine[0].token, mine[0].slots, command.ttl)
    return apply(command)


def anybody_releases(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    if isinstance(command, Release) and not command.tombstone:
        apply(Revoke(command.key, None, "released", now=True))
    return reply


def shows_ids(reply: Refused, command: Command) -> Reply:
    shown = (replace(each, lease=each.owner.removeprefix("owner-")) for each in reply.holders[:1])
    return replace(reply, holders=tuple(shown))


def fails_the_batch(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    if type(reply).__name__ == "Failed":
        raise DibsError("one command was wrong, so all have failed")
    return reply


BUGS: dict[str, Bug] = {
    "drops pushes": sound,
    "one page only": sound,
    "folds case": key(bytes.lower),
    "cuts at NUL": key(lambda name: name.split(b"\0")[0]),
    "cuts long names": key(lambda name: name[:255]),
    "forgets priority": commands(Acquire, lambda asked: replace(asked, priority=0)),
    "forgets lock delay": commands(Acquire, lambda asked: replace(asked, lock_delay=0.0)),
    "forgets the floor": commands(Acquire, lambda asked: replace(asked, floor=0)),
    "forgets burials": commands(Release, lambda asked: replace(asked, tombstone=0.0)),
    "forgets to retain": commands(Release, lambda asked: replace(asked, retain=0.0)),
    "revokes at once": commands(Revoke, lambda asked: replace(asked, now=True)),
    "forgets the order of resizes": commands(
        Resize, lambda asked: replace(asked, seq=next(ARRIVALS))
    ),
    "overtakes": commands(
        Acquire, lambda asked: replace(asked, capacity=asked.capacity + (not asked.queue))
    ),
    "forgets why": replies(Lost, lambda reply, _: replace(reply, detail="")),
    "tokens stand still": replies(Granted, lambda reply, _: replace(reply, token=7)),
    "always first": replies(Queued, lambda reply, _: replace(reply, position=0)),
    "shortens": replies(Renewed, lambda reply, asked: replace(reply, ttl=asked.ttl)),
    "shows ids": replies(Refused, shows_ids),
    "never gone": replies(Gone, lambda reply, _: Refused("held")),
    "revives the expired": revives_the_expired,
    "ignores repeats": ignores_repeats,
    "anybody releases": anybody_releases,
    "fails the batch": fails_the_batch,
}


def refusals(bug: str, tmp_path: Path) -> Iterator[str]:
    """The cases that refuse a memory store with that bug."""

    class Harness(BackendConformance):
        def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
            return BuggyStore(store_for("memory://", clock=clock), bug)

    for name, case in inspect.getmembers(Harness, inspect.isfunction):
        if name.startswith("test_") and "Clients" not in case.__qualname__:
            try:
                case(Harness(), World(Harness(), "blocking", tmp_path))
            except pytest.skip.Exception:
                continue
            except (AssertionError, DibsError, pytest.fail.Exception):
                yield name


def test_a_sound_store_is_not_refused(tmp_path: Path) -> None:
    assert list(refusals("none", tmp_path)) == []


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_refused(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = (0.5,)  # seconds that the suite waits for a notification
    monkeypatch.setattr(World.notified, "__defaults__", defaults)
    assert next(refusals(bug, tmp_path), None) is not None
