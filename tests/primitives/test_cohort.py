"""A lock that is passed on within a process: the order, the bound, the tokens, and what it costs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import AcquireTimeout, LockConfig
from dibs.backends import store_for
from dibs.hub import Hub
from dibs.model import Acquire, Release, Renew
from tests.primitives.crews import Crew, closing
from tests.primitives.worlds import World, in_both_worlds
from tests.runtime.stores import TappedStore

type Make = Callable[[], TappedStore]


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes a store in real time that counts what travels."""
    if request.param == "memory":
        return TappedStore
    return lambda: TappedStore(store=store_for(f"sqlite:///{tmp_path / 'leases.db'}"))


def client_of(w: World, store: Any) -> Any:
    """One more process, as it were, in real time."""
    return w.module.Client(Hub(store))


def commands(store: TappedStore) -> list[Any]:
    """All that has travelled to a store and was not for people."""
    sent = [command for batch in (*store.batches, *store.kept) for command in batch]
    return [command for command in sent if isinstance(command, Acquire | Release | Renew)]


@in_both_worlds
async def test_first_come_first_served_with_rising_tokens(w: World, make: Make) -> None:
    store = make()
    client, crew = client_of(w, store), Crew(w)
    async with closing(w, client):
        lock = client.lock("a", cohort=4)
        for number in range(10):
            await crew.send(str(number), lock)
        assert await crew.all_serve() == [str(number) for number in range(10)]
        tokens = [hand.lease.token for hand in crew.hands]
        assert tokens == sorted(set(tokens))
        ids = [hand.lease._id for hand in crew.hands]
        assert [ids.count(each) for each in dict.fromkeys(ids)] == [4, 4, 2]
        assert not (await w.get(lock.status())).holders
        assert lock._runtime().cohorts == {}


@in_both_worlds
async def test_who_came_later_passes_another_process_by_less_than_a_cohort(
    w: World, make: Make
) -> None:
    store = make()
    mine, others, crew = client_of(w, store), client_of(w, store), Crew(w)
    async with closing(w, mine, others):
        lock, other = mine.lock("a", cohort=3), others.lock("a")
        for name in ("a1", "a2", "B1", "a3", "a4", "B2", "a5", "a6", "a7", "a8"):
            await crew.send(name, other if name.startswith("B") else lock)
        # a4 begins a cohort behind B1; a5 and a6 join it and pass B2; a7 begins one behind B2.
        assert await crew.all_serve() == [
            *("a1", "a2", "a3", "B1"),
            *("a4", "a5", "a6", "B2"),
            *("a7", "a8"),
        ]
        tokens = {hand.name: hand.lease.token for hand in crew.hands}
        in_turn = [tokens[name] for name in crew.served]
        assert in_turn == sorted(set(in_turn)), "they rise across processes, too"


@in_both_worlds
async def test_nothing_is_shared_unless_it_is_asked_for(w: World, make: Make) -> None:
    store = make()
    mine, others, crew = client_of(w, store), client_of(w, store), Crew(w)
    async with closing(w, mine, others):
        lock, other = mine.lock("a"), others.lock("a")
        for name in ("a1", "a2", "B1", "a3", "a4"):
            await crew.send(name, other if name == "B1" else lock)
        assert crew.in_line(lock) == 0
        assert (await w.get(lock.status())).waiting == 4
        assert await crew.all_serve() == ["a1", "a2", "B1", "a3", "a4"]
        assert len({hand.lease._id for hand in crew.hands}) == 5


@in_both_worlds
async def test_passing_it_on_asks_no_store(w: World, make: Make) -> None:
    store = make()
    client, crew = client_of(w, store), Crew(w)
    async with closing(w, client):
        lock = client.lock("a", cohort=8)
        for number in range(8):
            await crew.send(str(number), lock)
        sent = commands(store)
        assert [type(command) for command in sent] == [Acquire], "one place, for all of them"
        for hand in crew.hands[:-1]:
            await hand.holds()
            await hand.lets_go()
        await crew.hands[-1].holds()
        assert commands(store) == sent, "no store was asked"
        await crew.hands[-1].lets_go()
        assert [type(command) for command in commands(store)] == [Acquire, Release]


@in_both_worlds
async def test_a_lone_holder_costs_what_it_costs_without(w: World, make: Make) -> None:
    store = make()
    client = client_of(w, store)
    async with closing(w, client):
        lock = client.lock("a", cohort=8)
        for _ in range(3):
            lease = await w.get(lock.acquire())
            assert await w.get(lease.release()) is True
            assert await w.get(lease.release()) is False
        assert [type(command) for command in commands(store)] == 3 * [Acquire, Release]


@in_both_worlds
async def test_the_stores_queue_shows_one_for_each_cohort(w: World) -> None:
    crew, lock = Crew(w), w.client.lock("a", cohort=3, label="web")
    for number in range(8):
        await crew.send(str(number), lock)
    status = await w.get(lock.status())
    assert len(status.holders) == 1
    assert status.mine == status.holders
    assert status.waiting == 2, "the first, and those who began the second and third cohort"
    owners = {each.owner for each in (*status.holders, *status.waiters)}
    assert owners == {crew.hands[0].lease.owner}
    await crew.hands[0].lets_go()
    status = await w.get(lock.status())
    assert status.holders[0].lease, "the same hold in the store, whoever of us has it"
    assert status.mine == status.holders
    await crew.all_serve()


@in_both_worlds
async def test_what_differs_is_not_shared(w: World) -> None:
    crew, held = Crew(w), w.client.lock("a", cohort=8)
    await crew.send("held", held)
    await crew.send("same", w.client.lock("a", cohort=8, auto_renew=False, max_hold=5))
    assert crew.in_line(held) == 1, "how it is to be held is each one's own"
    for what, value in (("priority", -1), ("note", "why"), ("label", "me"), ("ttl", 60)):
        options: dict[str, Any] = {"cohort": 8, what: value}
        await crew.send(what, w.client.lock("a", **options))
    await crew.send("cohort", w.client.lock("a", cohort=9))
    await crew.send("call", held, note="another")
    await crew.send("client", w.another().lock("a", cohort=8))
    assert crew.in_line(held) == 1
    assert (await w.get(held.status())).waiting == 7
    await crew.all_serve()


@in_both_worlds
async def test_a_try_asks_the_store_and_its_hold_is_passed_on(w: World) -> None:
    crew, lock = Crew(w), w.client.lock("a", cohort=3)
    first = await w.get(lock.try_acquire())
    assert await w.get(w.another().lock("a", cohort=3).try_acquire()) is None
    with pytest.raises(AcquireTimeout, match="is held by this very"):
        await w.get(lock.acquire(wait=0))
    second = await crew.send("second", lock)
    third = await crew.send("third", lock, wait=0)
    error = await third.fails()
    assert isinstance(error, AcquireTimeout)
    assert f"token {first.token}" in str(error)
    await w.get(first.release())
    assert (await second.holds())._id == first._id
    assert second.lease.token == first.token + 1
    await second.lets_go()
    assert not await w.get(lock.locked())


@in_both_worlds
async def test_a_holder_can_join_again_until_its_cohort_is_full(w: World) -> None:
    lock, crew = w.client.lock("a", cohort=4), Crew(w)
    await crew.send("a", lock)
    await crew.send("b", lock)
    await crew.send("B", w.another().lock("a"))
    for number in range(4):
        await crew.hands[number if number < 2 else number + 1].lets_go()
        await crew.send(f"again{number}", lock)
    assert await crew.all_serve() == ["a", "b", "again0", "again1", "B", "again2", "again3"]


@in_both_worlds
async def test_blocks_are_alike(w: World) -> None:
    lock, crew = w.client.lock("a", cohort=4), Crew(w)
    first = await w.enter(lock)
    second = await crew.send("second", lock)
    await w.leave(lock, ValueError("mine"))
    assert (await second.holds()).token == first.token + 1
    await second.lets_go()


def test_it_is_set_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for lock in (dibs.Lock, dibs.sync.Lock):
        assert lock("cart").config.cohort is None
        assert lock("cart", cohort=8).config.cohort == 8
        assert lock.from_config("cart", LockConfig(cohort=2))._cohort == 2
    monkeypatch.setenv("DIBS_LOCK__CART__COHORT", "16")
    assert dibs.Lock("cart").config.cohort == 16
    assert dibs.Lock("other").config.cohort is None
    assert dibs.Lock("cart", cohort=None).config.cohort is None
    monkeypatch.setenv("DIBS_COHORT", "4")
    assert dibs.Lock("other").config.cohort == 4
    assert dibs.Semaphore("pool", 2)._cohort is None, "a setting for all is for all locks"
    monkeypatch.setenv("DIBS_LOCK__CART__COHORT", "off")
    assert dibs.Lock("cart").config.cohort is None


@pytest.mark.parametrize("wrong", [1, 0, -8, 1001])
def test_a_cohort_is_two_or_more(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="give an int from 2 to 1000, or None"):
        dibs.Lock("cart", cohort=wrong)
    monkeypatch.setenv("DIBS_COHORT", str(wrong))
    with pytest.raises(ValueError, match=f"^DIBS_COHORT is '{wrong}'"):
        dibs.Lock("cart")


@pytest.mark.parametrize("wrong", [True, 8.0, "8"])
def test_a_cohort_is_an_int(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"cohort is .*: give an int"):
        dibs.Lock("cart", cohort=wrong)


def test_a_semaphore_has_none() -> None:
    with pytest.raises(TypeError, match="cohort= is for locks, and this is a semaphore"):
        dibs.Semaphore("pool", 2, cohort=8)
