"""The suite is worth passing: each store here has one bug, and the suite refuses it."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

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
    def __init__(self, store: Store, bug: Bug) -> None:
        super().__init__(store)
        self._bug = bug

    def pushes(self, pushes: Sequence[Notification]) -> Sequence[Notification]:
        return () if self._bug is drops_pushes else pushes

    def page(self, page: Page) -> Page:
        return replace(page, cursor=None) if self._bug is one_page_only else page

    def blocking_connection(self) -> BlockingConnection:
        return BuggyConnection(self, self.inner.blocking_connection(), self._bug)


# ---- the bugs -------------------------------------------------------------------------------------


def none_at_all(command: Command, apply: Apply) -> Reply:
    return apply(command)


def drops_pushes(command: Command, apply: Apply) -> Reply:
    return apply(command)


def one_page_only(command: Command, apply: Apply) -> Reply:
    return apply(command)


def folds_case(command: Command, apply: Apply) -> Reply:
    return apply(replace(command, key=command.key.lower()))


def cuts_at_nul(command: Command, apply: Apply) -> Reply:
    return apply(replace(command, key=command.key.split(b"\0")[0]))


def cuts_long_names(command: Command, apply: Apply) -> Reply:
    return apply(replace(command, key=command.key[:255]))


def forgets_priority(command: Command, apply: Apply) -> Reply:
    return apply(replace(command, priority=0) if isinstance(command, Acquire) else command)


def forgets_burials(command: Command, apply: Apply) -> Reply:
    return apply(replace(command, tombstone=0.0) if isinstance(command, Release) else command)


def forgets_keep(command: Command, apply: Apply) -> Reply:
    return apply(replace(command, retain=0.0) if isinstance(command, Release) else command)


def forgets_lock_delay(command: Command, apply: Apply) -> Reply:
    return apply(replace(command, lock_delay=0.0) if isinstance(command, Acquire) else command)


def forgets_the_floor(command: Command, apply: Apply) -> Reply:
    return apply(replace(command, floor=0) if isinstance(command, Acquire) else command)


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


def revokes_at_once(command: Command, apply: Apply) -> Reply:
    return apply(replace(command, now=True) if isinstance(command, Revoke) else command)


def forgets_why(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    return replace(reply, detail="") if isinstance(reply, Lost) else reply


def tokens_stand_still(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    return replace(reply, token=7) if isinstance(reply, Granted) else reply


def shows_ids(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    if isinstance(command, Acquire) and isinstance(reply, Refused) and reply.holders:
        owner = reply.holders[0].owner.removeprefix("owner-")
        return replace(reply, holders=(replace(reply.holders[0], lease=owner),))
    return reply


def never_gone(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    return Refused("held") if isinstance(reply, Gone) else reply


def always_first(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    return replace(reply, position=0) if isinstance(reply, Queued) else reply


def fails_the_batch(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    if type(reply).__name__ == "Failed":
        raise DibsError("one command was wrong, so all have failed")
    return reply


BUGS = [
    value
    for name, value in list(globals().items())
    if inspect.isfunction(value)
    and list(inspect.signature(value).parameters) == ["command", "apply"]
]


def refusals(bug: Bug, tmp_path: Path, *, first_only: bool = True) -> list[str]:
    """The cases that refuse a memory store with that bug."""

    class Harness(BackendConformance):
        def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
            return BuggyStore(store_for("memory://", clock=clock), bug)

    found = []
    for name, case in inspect.getmembers(Harness, inspect.isfunction):
        if name.startswith("test_") and "Clients" not in case.__qualname__:
            try:
                case(Harness(), World(Harness(), "blocking", tmp_path))
            except pytest.skip.Exception:
                continue
            except (AssertionError, DibsError, pytest.fail.Exception):
                found.append(name)
                if first_only:
                    return found
    return found


def test_a_sound_store_is_not_refused(tmp_path: Path) -> None:
    assert refusals(none_at_all, tmp_path, first_only=False) == []


@pytest.mark.parametrize(
    "bug", [bug for bug in BUGS if bug is not none_at_all], ids=lambda b: b.__name__
)
def test_a_bug_is_refused(bug: Bug, tmp_path: Path) -> None:
    assert refusals(bug, tmp_path) != []
