"""What locks, semaphores and their leases do, for asyncio and threads."""

import gc
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dibs import AcquireTimeout, BackendUnavailable, CapacityWarning, LeaseLost, NotHeld, Reentrant
from dibs.locks.lease import LeaseBase
from dibs.model import Acquire, Command, Gone, Inspect, Renew
from tests.locks.waits import Beside, Holder, pause, ticking, until, until_queued
from tests.locks.worlds import World, in_both_worlds, is_free, outage, site
from tests.runtime.stores import TappedStore


@in_both_worlds
async def test_the_message_of_a_time_out_names_the_holder(w: World) -> None:
    holder = await w.get(
        w.client.lock("order:42", label="web", note="paying", auto_renew=False).acquire()
    )
    w.clock.advance(9)
    with pytest.raises(AcquireTimeout) as caught:
        await w.get(w.another().lock("order:42").acquire(wait=0))
    told = str(caught.value)
    assert re.search(r"^order:42 is held by \S+/\d+/web \(paying\) for 9 s", told), told
    assert f"token {holder.token}" in told
    assert "expires in 21 s" in told
    assert caught.value.key == b"lock:order:42"
    assert caught.value.holders[0].owner == holder.owner
    assert caught.value.retry_after == pytest.approx(21)
    assert isinstance(caught.value, TimeoutError)
    await w.get(holder.release())


@in_both_worlds
async def test_a_lost_lease_is_not_held_by_its_task_any_more(w: World) -> None:
    lock = w.client.lock("a", auto_renew=False, ttl=10)
    lost = await w.get(lock.acquire())
    w.clock.advance(11)
    assert lost.lost
    again = await w.get(lock.acquire(wait=0))
    assert not again.lost
    await w.get(again.release())


@in_both_worlds
async def test_ensure_counts_to_the_deadline_not_to_the_ttl(w: World) -> None:
    lease = await w.get(w.client.lock("a", ttl=10, auto_renew=False).acquire())
    assert lease.remaining == pytest.approx(8.9), "a margin of 1.1 s"
    lease.ensure(needs="8s")
    w.clock.advance(8)
    lease.ensure(needs=0.5)
    with pytest.raises(LeaseLost, match=r"has 900 ms left, and 2 s are needed"):
        lease.ensure(needs="2s")
    assert not lease.lost
    w.clock.advance(0.91)
    assert (lease.lost, lease.reason, lease.remaining) == (True, "expired", 0)
    with pytest.raises(LeaseLost, match=r"\(auto_renew is off\); another holder can get it soon"):
        lease.ensure()


@in_both_worlds
async def test_a_released_lease_can_be_neither_renewed_nor_relied_on(w: World) -> None:
    lease = await w.get(w.client.lock("a").acquire())
    assert await w.get(lease.wait_lost(0)) is False
    await w.get(lease.release())
    assert await w.get(lease.wait_lost()) is False, "given up is not lost"
    with pytest.raises(NotHeld, match="was released"):
        lease.ensure()
    with pytest.raises(NotHeld):
        await w.get(lease.renew())
    with pytest.raises(NotHeld):
        lease.detach()
    assert (lease.lost, lease.remaining) == (False, 0)


@in_both_worlds
async def test_renew_takes_another_ttl_and_never_shortens(w: World) -> None:
    lease = await w.get(w.client.lock("a", ttl=10).acquire())
    await w.get(lease.renew("60s"))
    assert (lease.ttl, lease.remaining) == (60, pytest.approx(60 - 6.6))
    await w.get(lease.renew(1))
    assert lease.remaining > 50
    await w.get(lease.release())


@pytest.mark.parametrize("by_hand", [True, False])
@in_both_worlds
async def test_an_answer_that_comes_after_the_deadline_revives_no_lease(
    w: World, by_hand: bool
) -> None:
    """The process was paused, and no timer has seen the deadline yet."""
    store, client = site(w)
    lease = await w.get(client.lock("a", ttl=10, auto_renew=not by_hand).acquire())
    end = w.clock.now() + 10

    def pause(commands: Sequence[Command]) -> None:
        if any(isinstance(command, Renew) for command in commands):
            w.clock._move(end)

    store.after = pause
    w.clock.advance(4)
    if by_hand:
        with pytest.raises(LeaseLost):
            await w.get(lease.renew())
    client.session.keeper.flush(5)
    assert lease.reason == "expired"
    await w.get(lease.release())


@in_both_worlds
async def test_max_hold_ends_a_lease_that_is_renewed(w: World) -> None:
    lease = await w.get(w.client.lock("a", ttl=3, max_hold=10).acquire())
    w.clock.advance(9.9)
    lease.ensure()
    w.clock.advance(0.2)
    assert lease.reason == "max_hold"
    w.client.session.keeper.flush(5)
    early = await w.get(w.another().lock("a").try_acquire())
    assert early is None, "its holder has only just been told, and may need a moment"
    w.clock.advance(3)
    again = await w.get(w.another().lock("a").try_acquire())
    assert again is not None, "it is renewed no more"
    await w.get(again.release())


@in_both_worlds
async def test_status_lists_the_clients_own_holders(w: World) -> None:
    lease = await w.get(w.client.lock("a", label="me").acquire())
    mine = await w.get(w.client.lock("a").status())
    assert mine.mine == mine.holders
    assert mine.holders[0].token == lease.token
    assert lease._id not in repr(mine), "an id is a capability, and secret"
    assert (await w.get(w.another().lock("a").status())).mine == ()
    await w.get(lease.release())


@in_both_worlds
async def test_list_finds_every_key_with_the_prefix_in_order(w: World) -> None:
    names = sorted(f"job/{n:03}" for n in range(250))
    leases = [await w.get(w.client.lock(name).acquire()) for name in (*names, "other")]
    found = w.client.list("job/", kind="lock")
    statuses = [status async for status in found] if w.is_async else list(found)
    assert [status.key.decode() for status in statuses] == [f"lock:{name}" for name in names]
    for lease in leases:
        await w.get(lease.release())
    rest = w.client.list()
    assert ([status async for status in rest] if w.is_async else list(rest)) == []


@in_both_worlds
async def test_a_task_may_wait_for_its_own_lease_to_expire(w: World) -> None:
    """Longer than it takes to look for deadlocks."""
    lock = w.client.lock("a", ttl=10, auto_renew=False)
    first = await w.get(lock.acquire())
    assert await w.get(lock.try_acquire()) is None
    second = await ticking(w, lambda: lock.acquire(wait=20))
    assert first.lost
    assert second.token > first.token
    await w.get(second.release())


@in_both_worlds
async def test_a_lease_that_was_lost_before_its_block_began_was_not_dropped(w: World) -> None:
    """The process was paused between the grant and the body, so nothing has seen the loss yet."""
    lease = await w.get(w.client.lock("a", ttl=3).acquire())
    w.clock._move(w.clock.now() + 10)  # without a stop on the way
    with pytest.raises(LeaseLost):
        await w.enter(lease)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del lease
        gc.collect()
    assert not told


# -- semaphores -------------------------------------------------------------------------------------


@in_both_worlds
async def test_several_units_in_one_block(w: World) -> None:
    gpus = w.client.semaphore("gpu", 4)
    for units in (0, 5):
        with pytest.raises(ValueError, match="has a capacity of 4"):
            await w.get(gpus.acquire(units=units))
    one = await w.get(gpus.acquire())
    block = gpus.acquire(units=3)
    lease = await w.enter(block)
    assert lease.slots == (1, 2, 3)
    with pytest.raises(ValueError, match=r"slots \(1, 2, 3\)"):
        _ = lease.slot
    assert await w.get(gpus.locked())
    await w.leave(block)
    status = await w.get(gpus.status())
    assert [holder.slots for holder in status.holders] == [one.slots] == [(0,)]
    await w.get(one.release())


@in_both_worlds
async def test_a_capacity_may_grow_and_shrink_between_acquires(w: World) -> None:
    small, large = (w.client.semaphore("gpu", capacity) for capacity in (2, 4))
    first = [await w.get(small.acquire()) for _ in range(2)]
    more = [await w.get(large.acquire()) for _ in range(2)]
    assert [lease.slot for lease in (*first, *more)] == [0, 1, 2, 3]
    with pytest.warns(CapacityWarning, match=r"capacity of 2 here, and slot 3 is held"):
        assert await w.get(small.try_acquire()) is None
    for lease in more:
        lease.ensure()  # what is held runs on
        await w.get(lease.release())
    assert await w.get(small.try_acquire()) is None
    await w.get(first[0].release())
    again = await w.get(small.acquire())
    assert again.slot == 0
    for lease in (again, first[1]):
        await w.get(lease.release())


@in_both_worlds
async def test_status_warns_of_another_capacity(w: World) -> None:
    mine, theirs = (w.client.semaphore("gpu", capacity) for capacity in (2, 4))
    lease = await w.get(theirs.acquire())
    for look in (mine.status, mine.locked):
        with pytest.warns(CapacityWarning, match="it was last acquired with one of 4"):
            await w.get(look())
    others = [await w.get(theirs.acquire()) for _ in range(3)]
    with (
        pytest.warns(CapacityWarning, match="of at least 4"),
        pytest.raises(AcquireTimeout),
    ):
        await w.get(mine.acquire(wait=0))
    for each in (lease, *others):
        await w.get(each.release())


@in_both_worlds
async def test_equal_capacities_cause_no_warning(w: World) -> None:
    mine: Any = w.client.semaphore("gpu", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await w.get(mine.status())
        held = [await w.get(mine.acquire()) for _ in range(2)]
        assert await w.get(mine.try_acquire()) is None
        assert await w.get(mine.locked())
        for lease in held:
            await w.get(lease.release())
        old = await w.get(w.client.semaphore("gpu", 4).acquire())
        await w.get(old.release())
        assert not await w.get(mine.locked()), "what nobody uses has no capacity"


# -- lock delay -------------------------------------------------------------------------------------


def unrenewed(w: World, **options: Any) -> Any:
    """A lock whose leases end after 10 s, and leave it closed for another 20."""
    return w.client.lock("a", ttl=10, lock_delay=20, auto_renew=False, **options)


@in_both_worlds
async def test_a_lock_delay_closes_the_lock_after_an_expiry_only(w: World) -> None:
    lock, others = unrenewed(w), w.another().lock("a")
    await w.enter(lock)
    await w.leave(lock, LookupError("mine"))
    assert await is_free(w, others), "the body has ended"
    lease = await w.get(lock.acquire())
    w.clock.advance(11)
    assert lease.reason == "expired"
    assert await w.get(lock.try_acquire()) is None, "also to its last holder"
    w.clock.advance(18.9)
    with pytest.raises(AcquireTimeout, match="retained after its last hold, free in") as refusal:
        await w.get(others.acquire(wait=0))
    assert [holder.state for holder in refusal.value.holders] == ["retained"]
    w.clock.advance(0.2)
    assert await is_free(w, others)


@in_both_worlds
async def test_a_body_that_ends_before_the_expiry_leaves_the_lock_open(w: World) -> None:
    """It lost its lease at the deadline, a margin before the expiry, and was stopped in time."""
    lock, others = unrenewed(w), w.another().lock("a")
    await w.enter(lock)
    w.clock.advance(9.5)
    with pytest.raises(LeaseLost):
        await w.leave(lock)
    await until(w, lambda: is_free(w, others))


@in_both_worlds
async def test_a_lock_delay_closes_only_what_was_held(w: World) -> None:
    options = {"ttl": 10, "lock_delay": 20, "auto_renew": False}
    units = await w.get(w.client.semaphore("s", 3, **options).acquire(units=2))
    reader = await w.get(w.client.rwlock("r", **options).read().acquire())
    w.clock.advance(11)
    assert units.lost
    assert reader.lost
    others = w.another()
    other = await w.get(others.semaphore("s", 3).try_acquire())
    assert other.slots == (2,)
    assert not await is_free(w, others.semaphore("s", 3))
    assert await is_free(w, others.rwlock("r").read())
    assert not await is_free(w, others.rwlock("r").write())
    w.clock.advance(19.1)
    assert await is_free(w, others.semaphore("s", 3))
    assert await is_free(w, others.rwlock("r").write())
    await w.get(other.release())


@in_both_worlds
async def test_nobody_leads_for_a_while_after_a_leader_that_vanished(w: World) -> None:
    store, client = site(w)
    leader = client.leader_election("main", lock_delay=30)
    await w.enter(leader)
    with outage(store):
        w.clock.advance(16)  # a ttl, in which nothing of it reaches the store
        with pytest.raises(LeaseLost):
            await w.leave(leader)
        (holder,) = (await w.get(w.client.status("main", "leader"))).holders
    assert (holder.state, 28 < holder.expires_in <= 29) == ("retained", True)
    w.clock.advance(29.1)
    assert not (await w.get(w.client.status("main", "leader"))).holders


# -- whose a lease is -------------------------------------------------------------------------------


class Interrupt(BaseException):
    """As a Ctrl-C, which asyncio would not leave to a test."""


def one(w: World, client: Any) -> Any:
    return client.lock("a", wait=60)


def several(w: World, client: Any) -> Any:
    return w.module.AllOf(client.lock("a"), wait=60)


@pytest.mark.parametrize(("maker", "lost"), [(one, 0), (one, 1), (several, 0), (several, 2)])
@in_both_worlds
async def test_a_grant_whose_lease_could_not_be_made_is_given_up(
    w: World, monkeypatch: pytest.MonkeyPatch, maker: Callable[..., Any], lost: int
) -> None:
    """With `lost` answers to its Acquire: then a copy may still come, and finds the id buried."""
    store, sent = TappedStore(store=w.store), list[Acquire]()

    def lose(commands: Any) -> None:
        acquires = [command for command in commands if isinstance(command, Acquire)]
        sent.extend(acquires)
        if acquires and len(sent) <= lost:
            w.clock.advance(0.5)
            raise BackendUnavailable("planted")

    store.after = lose
    client = w.another(store)

    def interrupted(self: LeaseBase, *about: Any) -> None:
        self._end = "unborn"
        raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(LeaseBase, "__init__", interrupted)
        wanted = maker(w, client)
        with pytest.raises(Interrupt):
            await w.get(wanted.acquire())
    while (w.ask(Inspect(b"lock:a"))).holders:
        await pause(w)
    late = w.ask(sent[-1])
    if lost:
        assert isinstance(late, Gone)
    lease = await w.get(w.client.lock("b").try_acquire())
    await w.get(lease.release())


@in_both_worlds
async def test_a_detached_lease_is_held_by_nobody_here(w: World) -> None:
    lock = w.client.lock("a", ttl=10)
    lease = await w.enter(lock)
    handle = lease.detach()
    assert lease._id not in repr(lease), "an id is a secret"
    with pytest.raises(NotHeld, match="was detached"):
        lease.ensure()
    with pytest.raises(NotHeld):
        lease.detach()
    assert await w.get(lease.release()) is False
    await w.leave(lock)  # without an error
    attached = await w.get(w.another().attach(handle))
    assert (attached.token, attached.slots, attached.ttl) == (lease.token, (0,), 10)
    w.clock.advance(60)
    attached.ensure()
    assert await w.get(attached.release())
    assert await is_free(w, w.client.lock("a"))


@in_both_worlds
async def test_attaching_needs_a_handle_of_a_lease_that_stands(w: World) -> None:
    handle = (await w.get(w.client.lock("a", ttl=10).acquire())).detach()
    w.clock.advance(11)
    with pytest.raises(LeaseLost, match="has ended"):
        await w.get(w.another().attach(handle))
    for wrong in ("", "lease1.", "lease1.AAAA", "lease2.e30=", "lease1.e30="):
        with pytest.raises(ValueError, match="no handle"):
            await w.get(w.client.attach(wrong))


@in_both_worlds
async def test_an_adopted_lease_belongs_to_the_task_or_thread_that_adopts_it(w: World) -> None:
    lock = w.client.lock("a")
    lease = await w.get(lock.acquire())

    async def adopt() -> None:
        assert await w.get(lock.try_acquire()) is None
        lease.adopt()
        with pytest.raises(Reentrant):
            await w.get(lock.acquire())
        assert await w.get(lease.release()) is True

    await Beside(w, adopt).result()
    await w.get((await w.get(lock.acquire(wait=0))).release())


@in_both_worlds
async def test_another_task_or_thread_of_the_client_waits(w: World) -> None:
    lock = w.client.lock("a")
    lease = await w.get(lock.acquire())
    other = Holder(w, lock)
    await until_queued(w, "a")
    await w.get(lease.release())
    await other.holds()
    await other.lets_go()
