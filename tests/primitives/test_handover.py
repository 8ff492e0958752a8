"""Leases that pass from one process or task to another."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from dibs import LeaseLost, NotHeld, Reentrant
from dibs.sync import Client, Lease, connect
from tests.primitives.worlds import World, in_both_worlds

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
