"""Uses everything public as a typed program would; only checked, never run."""

import datetime
from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import leasehold
import leasehold.sync
from leasehold import Lease, Lock, LockConfig, Semaphore, connect, override, set_default
from leasehold.model import Holder, Status


async def asynchronous() -> None:
    async with Lock("a", ttl="30s", wait=datetime.timedelta(seconds=5)) as lease:
        assert_type(lease, Lease)
        assert_type(lease.token, int)
        assert_type(lease.slots, tuple[int, ...])
        assert_type(lease.remaining, float)
        lease.ensure(needs="2s")
        assert_type(await lease.renew(), None)
        assert_type(await lease.wait_lost(1), bool)
        assert_type(await lease.release(), bool)
    async with Lock(b"a").acquire(priority=3, note="why") as lease:
        assert_type(lease, Lease)
    assert_type(await Lock("a").acquire(wait=None), Lease)
    assert_type(await Lock("a").acquire(within=object()), Lease)
    assert_type(await Lock("a").try_acquire(), Lease | None)
    async with connect("memory://") as client:
        assert_type(client, leasehold.Client)
        assert_type(client.lock("a", max_hold="1h", require={"durable"}), Lock)
        assert_type(client.semaphore("s", 4), Semaphore)
        assert_type(await client.status("a"), Status)
        assert_type(await client.revoke("a", reason="why", now=True), int)
        assert_type(await client.attach("handle"), Lease)
        assert_type(client.list("a"), AsyncIterator[Status])
        with override(client):
            pass
    status = await Lock("a").status()
    assert_type(status.mine, tuple[Holder, ...])
    assert_type(Lock.from_config("a", LockConfig(ttl="1m")), Lock)
    set_default("memory://")


def blocking() -> None:
    with leasehold.sync.Lock("a") as lease:
        assert_type(lease, leasehold.sync.Lease)
        assert_type(lease.renew("1m"), None)
        assert_type(lease.release(), bool)
    with leasehold.sync.Lock("a").acquire(units=1) as lease:
        assert_type(lease.owner, str)
    leasehold.sync.Lock("a").acquire().release(within=object())
    assert_type(leasehold.sync.Lock("a").try_acquire(), leasehold.sync.Lease | None)
    with leasehold.sync.connect() as client:
        assert_type(client.list(), Iterator[Status])
        assert_type(client.lock("a").locked(), bool)
        assert_type(client.attach("handle"), leasehold.sync.Lease)


@Lock.wraps("report:{day}", on_busy="skip", ttl="1m")
async def report(day: datetime.date) -> int:
    return day.year


@leasehold.sync.Lock.wraps("report:{day}")
def plain_report(day: datetime.date) -> int:
    return day.year


async def decorated() -> None:
    assert_type(await report(datetime.date(2026, 3, 1)), int)
    assert_type(plain_report(day=datetime.date(2026, 3, 1)), int)


async def wrong() -> None:
    Lock("a", ttl=[])  # type: ignore[arg-type]
    Lock("a", timeout=3)  # type: ignore[arg-type]
    Lock("a").acquire(5)  # type: ignore[call-arg]
    await leasehold.sync.Lock("a").acquire()  # type: ignore[misc]
    await report("today")  # type: ignore[arg-type]
