"""Leases that nobody looks after, by their id."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dibs import BackendUnavailable, LeaseLost, NotHeld, Reentrant
from dibs.errors import AcquireTimeout, DibsError
from dibs.locks.by_id import ManualLeases
from dibs.locks.lease import LeaseBase
from dibs.model import Acquire, Gone, Inspect
from dibs.sync import Client, Lease, connect
from tests.locks.circles import ask
from tests.locks.waits import pause
from tests.locks.worlds import World, in_both_worlds
from tests.runtime.stores import TappedStore


def unattended(world: World, client: Any = None, kind: Any = "lock") -> ManualLeases:
    session = (client or world.client).session
    return ManualLeases(
        session.loop_runtime() if world.is_async else session.thread_runtime(), kind, "x"
    )


@in_both_worlds
async def test_it_is_renewed_by_nobody_else(world: World) -> None:
    leases = unattended(world)
    held = await leases.acquire("me", 10.0, note="why")
    assert held.key == b"lock:x"
    assert 0 < held.remaining <= 10
    (holder,) = (await world.get(world.client.status("x"))).holders
    assert (holder.owner, holder.note, holder.token) == ("me", "why", held.token)
    world.clock.advance(8)
    assert 8 < await leases.renew(held.id, 10.0) <= 10
    world.clock.advance(8)
    assert (await world.get(world.client.status("x"))).holders
    world.clock.advance(3)
    assert not (await world.get(world.client.status("x"))).holders
    for late in (leases.renew(held.id, 10.0), leases.release(held.id)):
        with pytest.raises(LeaseLost, match="nothing of x is held under this id"):
            await late


@in_both_worlds
async def test_another_client_goes_on_with_it(world: World) -> None:
    held = await unattended(world).acquire("me", 10.0, lease_id="i" * 24)
    elsewhere = unattended(world, world.another())
    again = await elsewhere.acquire("me", 10.0, lease_id="i" * 24)
    assert (again.id, again.token) == ("i" * 24, held.token)
    with pytest.raises(AcquireTimeout, match="x is held by me"):
        await elsewhere.acquire("me", 10.0)
    await elsewhere.release(held.id)
    assert (await elsewhere.acquire("me", 10.0)).token > held.token


@in_both_worlds
async def test_units_of_several(world: World) -> None:
    leases = unattended(world, kind="semaphore")
    held = await leases.acquire("me", 10.0, units=2, capacity=3)
    assert len(held.slots) == 2
    with pytest.raises(AcquireTimeout):
        await leases.acquire("me", 10.0, units=2, capacity=3)
    with pytest.raises(DibsError, match="cannot acquire"):
        await leases.acquire("me", 10.0, units=9, capacity=3, wait=5.0)


@in_both_worlds
async def test_what_is_given_up_is_free(world: World) -> None:
    leases = unattended(world)
    leases.give_up()  # nothing was asked for
    held = await leases.acquire("me", 10.0)
    leases.give_up()
    if world.is_async:
        await world.client.session.close_loop()
    world.client.session.close()
    other = await unattended(world, world.another()).acquire("you", 10.0)
    assert other.token > held.token


@in_both_worlds
async def test_one_that_was_revoked_says_why(world: World) -> None:
    leases = unattended(world)
    held = await leases.acquire("me", 10.0)
    await world.get(world.client.revoke("x", reason="it hangs"))
    with pytest.raises(LeaseLost, match="it hangs"):
        await leases.renew(held.id, 10.0)


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
    while (await ask(w.client, Inspect(b"lock:a"))).holders:
        await pause(w)
    late = await ask(w.client, sent[-1])
    if lost:
        assert isinstance(late, Gone)
    lease = await w.get(w.client.lock("b").try_acquire())
    await w.get(lease.release())


ATTACH = """
import sys
from dibs.sync import connect

client = connect(sys.argv[1])
with client.attach(sys.stdin.read()) as lease:
    print(lease.token, lease.slots, lease.owner, lease.ttl, lease.remaining > 20, flush=True)
    lease.renew()
    print(client.lock("a").locked())
print(client.lock("a").locked())
client.close()
"""


@pytest.mark.multiprocess
def test_another_process_attaches_what_this_one_detached(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'leases.db'}"
    client = connect(url)
    lease = client.lock("a", label="first").acquire()
    done = subprocess.run(
        [sys.executable, "-c", ATTACH, url],
        input=lease.detach(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    told = f"{lease.token} {lease.slots} {lease.owner} 30.0 True"
    assert done.stdout.splitlines() == [told, "True", "False"]
    assert lease.release() is False, "it is not ours any more"
    client.close()


@in_both_worlds
async def test_a_detached_lease_is_nobodys_here(w: World) -> None:
    lease = await w.get(w.client.lock("a", ttl=10).acquire())
    handle = lease.detach()
    assert lease._id not in repr(lease)
    with pytest.raises(NotHeld, match="was detached"):
        lease.ensure()
    with pytest.raises(NotHeld):
        lease.detach()
    assert not lease.lost
    attached = await w.get(w.another().attach(handle))
    assert (attached.token, attached.slots, attached.ttl) == (lease.token, (0,), 10)
    w.clock.advance(60)
    attached.ensure()
    assert await w.get(attached.release())
    assert not await w.get(w.client.lock("a").locked())


@in_both_worlds
async def test_attaching_too_late_raises(w: World) -> None:
    handle = (await w.get(w.client.lock("a", ttl=10).acquire())).detach()
    w.clock.advance(11)
    with pytest.raises(LeaseLost, match="has ended"):
        await w.get(w.another().attach(handle))


@in_both_worlds
async def test_what_is_no_handle_is_refused(w: World) -> None:
    for wrong in ("", "lease1.", "lease1.AAAA", "lease2.e30=", "lease1.e30="):
        with pytest.raises(ValueError, match="no handle"):
            await w.get(w.client.attach(wrong))


@in_both_worlds
async def test_a_block_whose_lease_was_detached_ends_quietly(w: World) -> None:
    lock = w.client.lock("a")
    lease = await w.enter(lock)
    handle = lease.detach()
    await w.leave(lock)
    assert await w.get(w.another().lock("a").locked())
    attached = await w.get(w.client.attach(handle))
    await w.get(attached.release())


def test_a_thread_that_adopts_a_lease_is_the_one_that_holds_it(tmp_path: Path) -> None:
    client: Client = connect(f"sqlite:///{tmp_path / 'leases.db'}")
    lease = client.lock("a").acquire()
    found: dict[str, Any] = {}

    def adopt(lease: Lease) -> None:
        lease.adopt()
        with pytest.raises(Reentrant):
            client.lock("a").acquire()
        found["released"] = lease.release()

    with pytest.raises(Reentrant):
        client.lock("a").acquire()
    thread = threading.Thread(target=adopt, args=(lease,))
    thread.start()
    thread.join(10)
    assert found == {"released": True}
    client.lock("a").acquire(wait=0).release()
    client.close()


@in_both_worlds
async def test_a_lease_of_another_task_or_thread_is_not_reentrant(w: World) -> None:
    import asyncio

    lock = w.client.lock("a")
    lease = await w.get(lock.acquire())
    if w.is_async:

        async def child() -> object:
            return await lock.try_acquire()

        assert await asyncio.create_task(child()) is None
        waiter = asyncio.create_task(lock.acquire())
        while not (await lock.status()).waiting:
            await asyncio.sleep(0)
        await lease.release()
        await (await waiter).release()
    else:
        got: list[object] = []
        thread = threading.Thread(target=lambda: got.append(lock.acquire(wait=None).release()))
        thread.start()
        while not lock.status().waiting:
            pass
        lease.release()
        thread.join(10)
        assert got == [True]
