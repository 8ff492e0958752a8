"""Lock delay: what a hold leaves closed for a while, if it ended by expiry."""

import asyncio
import json
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import AcquireTimeout, LeaderConfig, LeaseLost, LockConfig, UnsafeTiming
from tests.locks.elections import outage, site
from tests.locks.worlds import World, in_both_worlds


def unrenewed(w: World, **options: Any) -> Any:
    """A lock whose leases end after 10 s, and leave it closed for another 20."""
    return w.client.lock("a", ttl=10, lock_delay=20, auto_renew=False, **options)


async def closed_for(w: World, lock: Any) -> float:
    with pytest.raises(AcquireTimeout, match="retained after its last hold, free in") as refusal:
        await w.get(lock.acquire(wait=0))
    (holder,) = refusal.value.holders
    assert holder.state == "retained"
    return float(holder.expires_in)


async def is_free(w: World, lock: Any) -> bool:
    lease = await w.get(lock.try_acquire())
    if lease is not None:
        await w.get(lease.release())
    return lease is not None


@in_both_worlds
async def test_after_an_expiry_it_stays_closed(w: World) -> None:
    lease = await w.get(unrenewed(w).acquire())
    others = w.another().lock("a")
    w.clock.advance(11)
    assert lease.reason == "expired"
    assert 18.9 < await closed_for(w, others) <= 19
    assert await w.get(unrenewed(w).try_acquire()) is None, "also for whoever held it"
    w.clock.advance(18.9)
    assert await closed_for(w, others) < 0.2
    w.clock.advance(0.2)
    assert await is_free(w, others)


@in_both_worlds
async def test_after_a_release_it_is_open(w: World) -> None:
    lock, others = unrenewed(w), w.another().lock("a")
    lease = await w.get(lock.acquire())
    await w.get(lease.release())
    assert await is_free(w, others)
    await w.enter(lock)
    await w.leave(lock, LookupError("mine"))
    assert await is_free(w, others), "after a failure as well: the body has ended"


@in_both_worlds
async def test_a_body_that_ends_before_the_store_lets_go_leaves_it_open(w: World) -> None:
    """It lost its lease at the deadline, a margin before the expiry, and was stopped in time."""
    lock, others = unrenewed(w), w.another().lock("a")
    await w.enter(lock)
    w.clock.advance(9.5)
    with pytest.raises(LeaseLost):
        await w.leave(lock)
    for _ in range(2000):
        if await is_free(w, others):
            break
        await asyncio.sleep(0.001) if w.is_async else time.sleep(0.001)
    assert await is_free(w, others)


@in_both_worlds
async def test_of_a_semaphore_only_what_was_held_stays_closed(w: World) -> None:
    options = {"ttl": 10, "lock_delay": 20, "auto_renew": False}
    lease = await w.get(w.client.semaphore("s", 3, **options).acquire(units=2))
    w.clock.advance(11)
    assert lease.lost
    others = w.another().semaphore("s", 3)
    other = await w.get(others.try_acquire())
    assert other.slots == (2,)
    assert await w.get(others.try_acquire()) is None
    w.clock.advance(19.1)
    assert await is_free(w, others)
    await w.get(other.release())


@in_both_worlds
async def test_a_reader_that_expired_keeps_writers_out_but_no_readers(w: World) -> None:
    lock = w.client.rwlock("a", ttl=10, lock_delay=20, auto_renew=False)
    lease = await w.get(lock.read().acquire())
    w.clock.advance(11)
    assert lease.lost
    others = w.another().rwlock("a")
    assert await is_free(w, others.read())
    assert not await is_free(w, others.write())
    w.clock.advance(19.1)
    assert await is_free(w, others.write())


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


@pytest.mark.parametrize("module", [dibs, dibs.sync], ids=["async", "sync"])
def test_it_is_set_like_every_other_setting(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.Lock("a").config.lock_delay == 0
    assert module.Lock("a", lock_delay="15s").config.lock_delay == 15
    assert module.Lock("a", lock_delay=timedelta(minutes=1)).config.lock_delay == 60
    election = module.LeaderElection("a", lock_delay="15s")
    assert election.config.lock_delay == 15
    monkeypatch.setenv("DIBS_LOCK__CART__LOCK_DELAY", "20s")
    monkeypatch.setenv("DIBS_LOCK_DELAY", "5s")
    assert module.Lock("cart").config.lock_delay == 20
    assert module.RWLock("cart").config.lock_delay == 5
    assert module.Lock("cart", env_load=False).config.lock_delay == 0
    assert module.Lock.from_config("a", LockConfig(lock_delay="1m")).config.lock_delay == 60
    with pytest.raises(TypeError, match="lock_delay"):
        module.TaskLock("a", 0, 1, lock_delay=1)


@pytest.mark.parametrize("make", [LockConfig, LeaderConfig])
def test_what_is_out_of_all_proportion_is_refused(make: Any) -> None:
    assert make(lock_delay="10m").lock_delay == 600
    too_long: list[Any] = [601, "1h", float("inf")]
    for wrong in too_long:
        with pytest.raises(UnsafeTiming, match=r"cannot be ended early.* at most 600 s"):
            make(lock_delay=wrong)
    with pytest.raises(ValueError, match="negative"):
        make(lock_delay=-1)
    no_duration: list[Any] = [None, True, [1]]
    for wrong in no_duration:
        with pytest.raises(TypeError, match="lock_delay"):
            make(lock_delay=wrong)


@pytest.mark.multiprocess
def test_a_command_that_was_killed_leaves_it_closed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    run = [sys.executable, "-m", "dibs", "run", "--url", url, "a"]
    held = subprocess.Popen(
        [*run, "--ttl", "1s", "--lock-delay", "10m", "--", "sh", "-c", "echo up; sleep 60"],
        stdout=subprocess.PIPE,
    )
    try:
        assert held.stdout is not None
        assert held.stdout.readline() == b"up\n"
    finally:
        held.kill()
        held.wait()
        held.stdout.close()  # type: ignore[union-attr]
    done = subprocess.run(
        [*run, "--wait", "2s", "--json", "--", "true"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 75
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert "retained after its last hold, free in 10 min" in told[-1]["message"]
