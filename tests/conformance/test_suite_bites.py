"""The suite is worth passing: each store here has one bug, and the suite refuses it."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
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


def commands(kind: type[Command], **changes: Any) -> Bug:
    """These commands arrive with other fields."""
    return lambda command, apply: apply(
        replace(command, **changes) if isinstance(command, kind) else command
    )


def replies(kind: type[Reply], **changes: Any) -> Bug:
    """These replies come back with other fields."""

    def change(command: Command, apply: Apply) -> Reply:
        reply = apply(command)
        return replace(reply, **changes) if isinstance(reply, kind) else reply

    return change


def forgets_the_order_of_resizes(command: Command, apply: Apply) -> Reply:
    if isinstance(command, Resize):
        order = forgets_the_order_of_resizes
        order.seq = getattr(order, "seq", 0) + 1  # type: ignore[attr-defined]
        return apply(replace(command, seq=order.seq))  # type: ignore[attr-defined]
    return apply(command)


def revives_the_expired(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    if isinstance(command, Renew) and reply == Lost("expired"):
        again = apply(Acquire(command.key, command.id, "revived", command.ttl))
        return Renewed(command.ttl) if isinstance(again, Granted) else reply
    return reply


def shortens(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    return (
        replace(reply, ttl=command.ttl)
        if isinstance(command, Renew) and isinstance(reply, Renewed)
        else reply
    )


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


def overtakes(command: Command, apply: Apply) -> Reply:
    if isinstance(command, Acquire) and not command.queue:
        return apply(replace(command, capacity=command.capacity + 1))
    return apply(command)


def shows_ids(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    if isinstance(command, Acquire) and isinstance(reply, Refused) and reply.holders:
        owner = reply.holders[0].owner.removeprefix("owner-")
        return replace(reply, holders=(replace(reply.holders[0], lease=owner),))
    return reply


def never_gone(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    return Refused("held") if isinstance(reply, Gone) else reply


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
    "forgets priority": commands(Acquire, priority=0),
    "forgets lock delay": commands(Acquire, lock_delay=0.0),
    "forgets the floor": commands(Acquire, floor=0),
    "forgets burials": commands(Release, tombstone=0.0),
    "forgets to retain": commands(Release, retain=0.0),
    "revokes at once": commands(Revoke, now=True),
    "forgets why": replies(Lost, detail=""),
    "tokens stand still": replies(Granted, token=7),
    "always first": replies(Queued, position=0),
    "forgets the order of resizes": forgets_the_order_of_resizes,
    "revives the expired": revives_the_expired,
    "shortens": shortens,
    "ignores repeats": ignores_repeats,
    "anybody releases": anybody_releases,
    "overtakes": overtakes,
    "shows ids": shows_ids,
    "never gone": never_gone,
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
