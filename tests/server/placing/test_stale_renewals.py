"""Who is cut off from the records says 'renewed' of nothing that may never have been told as granted.

A renewal is told by any table, as nobody gets a lock by it: but for who was not told of the grant, as it was
withheld, or never came back.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from secrets import token_urlsafe
from typing import Any, cast
from uuid import uuid4

import pytest

from dibs.errors import BackendUnavailable
from dibs.model import (
    Acquire,
    Command,
    Granted,
    Lost,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Resize,
)
from dibs.runtime.port import Answer
from dibs.server.config import Placement
from dibs.server.placing import atlas, progress
from dibs.server.placing.guards import Guards
from dibs.server.placing.home import Home
from dibs.server.placing.mover import Mover
from dibs.server.placing.plans import LATE, plan_for
from dibs.server.placing.progress import Standing
from dibs.server.placing.table import Table
from dibs.server.placing.telling import Telling
from dibs.server.placing.untold import MOST, Untold
from tests.server.placing.asking import acquired, lock, move, until
from tests.server.world import World

FRESH = 0.5
KEY = b"lock:d/n"
ASK = Acquire(KEY, "x", "me", 60.0)
OTHER = Acquire(b"lock:other", "o", "me", 60.0)


class Two:
    """A server that goes on, and one that is cut off from the records sooner or later."""

    def __init__(self, *names: str) -> None:
        placements = tuple(Placement(name=each, url=f"memory://{uuid4()}") for each in names)
        settings: dict[str, Any] = {
            "store": "",
            "records": f"memory://{uuid4()}",
            "placement": placements,
            "placement_fresh": FRESH,
        }
        self.new, self.old = World.over(**settings), World.over(**settings)
        self.here = self.new.client()
        self.there = self.old.client(key=self.new.admin_key)

    def call(self, command: Command) -> Any:
        """By the server that is cut off."""
        runtime = self.old.server.service.runtime
        return self.old.do(lambda: runtime.call(command)).reply

    def call_all(self, *commands: Command) -> list[Any]:
        runtime = self.old.server.service.runtime
        found = self.old.do(lambda: runtime.call_all(commands))
        return [each.reply if type(each) is Answer else each for each in found]

    def cut_off(self, patch: pytest.MonkeyPatch) -> None:
        async def fail(*_: object) -> Any:
            raise BackendUnavailable("the records are away")

        for name in ("revision", "all", "get", "put"):
            patch.setattr(self.old.server.service.records, name, fail)
        self.old.do(self._outdate)

    async def _outdate(self) -> None:
        """Have it be long ago that the records were read."""
        found = self.old.server.service.runtime.atlas
        with suppress(BackendUnavailable):
            await found.read()  # also one that is under way
        found.table = found.table.aged(float("-inf"))

    def store(self) -> Any:
        return self.old.server.service.runtime.ways.named["a"]

    def phase(self) -> str:
        found = self.new.server.service.runtime.atlas.table.homes.get(b"d/")
        return "" if found is None else found.phase

    def close(self) -> None:
        self.old.close()
        self.new.close()


@pytest.fixture
def two() -> Iterator[Two]:
    found = Two("a", "b")
    yield found
    found.close()


@pytest.fixture
def lone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    monkeypatch.setattr(atlas, "FRESH_ALONE", 1.0)
    found = Two("a")
    yield found
    found.close()


@pytest.fixture
def cut() -> Iterator[pytest.MonkeyPatch]:
    """What is undone has the server read the records again."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


# ---- who waits at the old place -------------------------------------------------------------------


def test_who_waits_at_the_old_place_is_granted_nothing_there(
    two: Two, cut: pytest.MonkeyPatch
) -> None:
    first, x, looks = acquired(two.here, "d/n", ttl=60), token_urlsafe(16), list[int]()
    _count_looks(cut, looks)
    waits: dict[str, Any] = {"id": x, "ttl": 1, "wait": 0.1}
    assert two.there.post(lock("d/n"), params=waits).status_code == 409
    heard = time.monotonic()
    two.cut_off(cut)
    move(two.here, "d", "b")
    until(lambda: two.phase() == "moving" and time.monotonic() > heard + 1.1)  # x is passed over
    assert two.here.delete(lock("d/n"), params={"id": first["id"]}).status_code == 200
    until(lambda: two.here.post(lock("d/n"), params={"ttl": 120}).status_code == 200)
    held = two.here.get(lock("d/n")).json()["sequencer"]
    until(lambda: len(looks) > 1 or two.phase() == "settled")
    for _ in range(3):
        answer = two.there.patch(lock("d/n"), params={"id": x, "ttl": 60})
        assert answer.status_code == 409, answer.text
    assert two.here.get(lock("d/n")).json()["sequencer"] == held
    assert two.phase() == "clearing"
    assert set(looks) == {1}
    assert two.there.delete(lock("d/n"), params={"id": x}).status_code == 200
    until(lambda: two.phase() == "settled")
    assert two.here.get(lock("d/n")).json()["sequencer"] == held


def _count_looks(patch: pytest.MonkeyPatch, looks: list[int]) -> None:
    """How many guards are prolonged each time that a mover takes away what it may."""
    prolong = Mover._prolong

    async def counted(self: Mover, home: Home, place: str, seen: Standing) -> None:
        await prolong(self, home, place, seen)
        if home.phase == "clearing":
            assert place == "a"
            looks.append(len(seen.fading))

    patch.setattr(Mover, "_prolong", counted)
    patch.setattr(progress, "STANDS", 10_000.0)  # so all are about to fade


# ---- what nobody was told of ----------------------------------------------------------------------


@pytest.fixture(params=["one", "many"])
def ask(request: pytest.FixtureRequest) -> Callable[[Two, Command], Any]:
    """A command alone, or among others that travel together."""

    def alone(of: Two, command: Command) -> Any:
        try:
            return of.call(command)
        except BackendUnavailable as error:
            return error

    def among_others(of: Two, command: Command) -> Any:
        return of.call_all(OTHER, command)[1]

    return alone if request.param == "one" else among_others


def lose_answers(of: Two, patch: pytest.MonkeyPatch) -> None:
    """The store applies what it is asked, and nobody hears of it."""
    store = of.store()
    call, call_all = store.call, store.call_all

    async def lost(command: Command, patience: float | None = None) -> Any:
        await call(command, patience)
        raise BackendUnavailable("no answer")

    async def all_lost(commands: Sequence[Command], patience: float | None = None) -> Any:
        await call_all(commands, patience)
        return [BackendUnavailable("no answer") for _ in commands]

    patch.setattr(store, "call", lost)
    patch.setattr(store, "call_all", all_lost)


def answer_late(of: Two, patch: pytest.MonkeyPatch) -> None:
    """Until the store answers the records could not be read for long."""
    store, placed = of.store(), of.old.server.service.runtime
    call, call_all = store.call, store.call_all

    async def late(command: Command, patience: float | None = None) -> Any:
        answer = await call(command, patience)
        placed.atlas.table = placed.atlas.table.aged(float("-inf"))
        return answer

    async def all_late(commands: Sequence[Command], patience: float | None = None) -> Any:
        told = await call_all(commands, patience)
        placed.atlas.table = placed.atlas.table.aged(float("-inf"))
        return told

    patch.setattr(store, "call", late)
    patch.setattr(store, "call_all", all_late)


@pytest.mark.parametrize("servers", ["two", "lone"])
@pytest.mark.parametrize("trouble", [lose_answers, answer_late])
def test_who_was_not_told_of_a_grant_is_not_told_that_it_is_renewed(
    request: pytest.FixtureRequest,
    servers: str,
    trouble: Callable[[Two, pytest.MonkeyPatch], None],
    ask: Callable[[Two, Command], Any],
    cut: pytest.MonkeyPatch,
) -> None:
    of: Two = request.getfixturevalue(servers)
    with pytest.MonkeyPatch.context() as patch:
        trouble(of, patch)
        assert isinstance(ask(of, ASK), BackendUnavailable)
    with pytest.MonkeyPatch.context() as patch:
        of.cut_off(patch)
        for command in (Renew(KEY, "x", 60.0), Resize(KEY, "x", 1, 0)):
            assert isinstance(ask(of, command), BackendUnavailable)
        assert isinstance(ask(of, Release(KEY, "y")), BackendUnavailable)  # as ever
    until(lambda: of.old.server.service.runtime.may_grant)
    until(lambda: isinstance(ask(of, Renew(KEY, "x", 60.0)), Renewed))
    of.cut_off(cut)
    assert isinstance(ask(of, Renew(KEY, "x", 60.0)), Renewed)  # now it was told
    assert isinstance(ask(of, Release(KEY, "x")), Released)


def test_nor_where_it_is_sealed(two: Two, ask: Callable[[Two, Command], Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        lose_answers(two, patch)
        assert isinstance(ask(two, ASK), BackendUnavailable)
    found = two.old.server.service.runtime.atlas
    homes = {b"d/": Home("a").begun("b", 0.0).seal(0.0)}
    found.table = Table(found.table.listing, homes, found.table.read_at)
    assert ask(two, Renew(KEY, "x", 60.0)) == LATE


def test_nor_when_it_turns_out_meanwhile_that_there_may_be_another_store(
    lone: Two, ask: Callable[[Two, Command], Any], cut: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        lose_answers(lone, patch)
        assert isinstance(ask(lone, ASK), BackendUnavailable)
    assert lone.old.server.service.runtime.atlas.is_lone()
    answer_late(lone, cut)
    assert isinstance(ask(lone, Renew(KEY, "x", 60.0)), BackendUnavailable)


def test_a_request_that_is_refused_before_it_left_leaves_no_doubt(
    two: Two, ask: Callable[[Two, Command], Any], cut: pytest.MonkeyPatch
) -> None:
    assert isinstance(ask(two, ASK), Granted)
    two.cut_off(cut)
    assert isinstance(ask(two, ASK), BackendUnavailable)
    assert isinstance(ask(two, Renew(KEY, "x", 60.0)), Renewed)


@pytest.mark.parametrize("there", [None, Lost(), Queued(0, 1.0, 0.0), Renewed(9.0)])
@pytest.mark.parametrize(
    ("command", "reply"),
    [(Renew(KEY, "x", 60.0), Renewed(60.0)), (Resize(KEY, "x", 1, 0), Granted(7, (0,), 60.0))],
)
def test_where_it_is_sealed_the_old_place_tells_nobody_for_the_first_time(
    command: Command, reply: Reply, there: Reply | None
) -> None:
    home = Home("a").begun("b", 0.0)
    at_new = reply if isinstance(there, Renewed) else LATE
    assert _planned(home.seal(0.0), command, reply, there, is_untold=True) == at_new
    assert _planned(home.seal(0.0), command, reply, there, is_untold=False) == reply
    assert _planned(home, command, reply, there, is_untold=True) == reply


def _planned(
    home: Home, command: Command, here: Reply, there: Reply | None, *, is_untold: bool
) -> Reply:
    """What comes of it amid a move, where the places answer so; who is at the new place is told alike."""
    plan = plan_for(home, command, Guards(b""), is_untold=is_untold)
    next(plan)
    told = None if there is None else [here if isinstance(there, Renewed) else there]
    with pytest.raises(StopIteration) as end:
        plan.send([[here], told])
    return cast("Reply", end.value.value)


def test_what_came_too_late_is_remembered() -> None:
    telling = Telling(cast("Any", None))
    telling.sent(Renew(KEY, "x", 60.0), Answer(Queued(0, 1.0, 0.0), 0.0))
    assert not telling.untold.ids
    telling.sent(Renew(KEY, "x", 60.0), Answer(LATE, 0.0))
    assert telling.untold.has(Renew(KEY, "x", 60.0))


def test_a_copy_that_may_be_on_its_way_is_remembered() -> None:
    telling = Telling(cast("Any", None))
    telling.sent(ASK, Answer(Refused("held"), 0.0))
    assert not telling.untold.ids
    telling.sent(ASK, Answer(Refused("held"), 0.0, resent=True))
    assert telling.untold.has(Renew(KEY, "x", 60.0))


def test_what_was_withheld_longest_ago_is_forgotten_first() -> None:
    untold = Untold()
    for number in range(MOST + 1):
        untold.add(Acquire(KEY, str(number), "me", 60.0))
    untold.add(Acquire(KEY, "1", "me", 60.0))
    untold.add(Acquire(KEY, "one more", "me", 60.0))
    known = [each for each in range(MOST + 1) if untold.has(Renew(KEY, str(each), 60.0))]
    assert len(known) == MOST - 1
    assert known[:2] == [1, 3]
    assert not untold.has(Renew(b"lock:another", "1", 60.0))
    untold.settle(Renew(KEY, "1", 60.0))
    assert not untold.has(Renew(KEY, "1", 60.0))
