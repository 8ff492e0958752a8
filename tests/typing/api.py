"""Uses everything public as a typed program would; only checked, never run."""

import datetime
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal, assert_type

import dibs
import dibs.sync
from dibs import (
    AllOf,
    Campaign,
    LeaderConfig,
    LeaderElection,
    Lease,
    Leases,
    Lock,
    LockConfig,
    RWLease,
    RWLock,
    Semaphore,
    TaskLease,
    TaskLock,
    TaskLockConfig,
    Term,
    Waiting,
    connect,
    override,
    set_default,
)
from dibs.fencing import FileFence
from dibs.model import Holder, Status


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
    assert_type(await Lock("a", detect_deadlocks=False).acquire(on_wait=told), Lease)
    Lock("a", on_wait=told_later)
    assert_type(await Lock("a").try_acquire(), Lease | None)
    RWLock("a", reentrant=True, lock_delay=1)
    async with Lock("a", reentrant=True, lock_delay="15s") as lease:
        assert_type(FileFence("a").replace(lease, "text"), None)
        with FileFence("a").guard(("lock:a", lease.token, lease.slot)) as path:
            assert_type(path, Path)
    async with connect("memory://") as client:
        assert_type(client, dibs.Client)
        assert_type(client.lock("a", max_hold="1h", require={"durable"}), Lock)
        assert_type(client.semaphore("s", 4), Semaphore)
        assert_type(await client.status("a"), Status)
        assert_type(await client.revoke("a", reason="why", now=True), int)
        assert_type(await client.attach("handle"), Lease)
        assert_type(client.list("a"), AsyncIterator[Status])
        with override(client), override(client, name="reports"):
            pass
    async with dibs.Client.named("reports") as client:
        assert_type(client, dibs.Client)
    assert_type(Lock("a", client="reports"), Lock)
    status = await Lock("a").status()
    assert_type(status.mine, tuple[Holder, ...])
    assert_type(Lock.from_config("a", LockConfig(ttl="1m")), Lock)
    set_default("memory://")


def told(waiting: Waiting) -> None:
    assert_type(waiting.holders, tuple[Holder, ...])
    assert_type(waiting.position, int | None)
    assert_type(waiting.estimate, float | None)


async def told_later(waiting: Waiting) -> None:
    assert_type(waiting.waited, float)


async def readers_and_writers(client: dibs.Client) -> None:
    lock = client.rwlock("r", ttl="10s")
    assert_type(lock, RWLock)
    async with lock.read() as lease:
        assert_type(lease, RWLease)
        assert_type(await lease.upgrade(wait="1s"), None)
        assert_type(await lease.downgrade(), None)
        assert_type(lease.mode, Literal["read", "write"])
    async with lock.write().acquire(wait=3) as lease:
        assert_type(lease, RWLease)
    assert_type(await lock.read().acquire(), RWLease)
    assert_type(await lock.write().try_acquire(note="why"), RWLease | None)
    assert_type(await lock.status(), Status)
    assert_type(RWLock.from_config("r", LockConfig()), RWLock)


def blocking_readers_and_writers(client: dibs.sync.Client) -> None:
    lock = client.rwlock("r")
    assert_type(lock, dibs.sync.RWLock)
    with lock.read() as lease:
        assert_type(lease, dibs.sync.RWLease)
        assert_type(lease.upgrade(wait=0), None)
    assert_type(lock.write().acquire(), dibs.sync.RWLease)
    assert_type(lock.write().try_acquire(), dibs.sync.RWLease | None)
    assert_type(lock.locked(), bool)


async def several(client: dibs.Client) -> None:
    gpus, catalogue = client.semaphore("gpu", 4), client.rwlock("r")
    job = AllOf(client.lock("a"), (gpus, 2), catalogue.read(), wait="5s", ttl=30)
    async with job as leases:
        assert_type(leases, Leases)
        assert_type(leases[0], Lease)
        assert_type(leases.tokens, tuple[int, ...])
        assert_type([lease.token for lease in leases], list[int])
        leases.ensure("2s")
        assert_type(await leases.wait_lost(1), bool)
        assert_type(await leases.release(), bool)
    async with AllOf(job, client.lock("b")).acquire(wait=0, note="why") as leases:
        assert_type(leases.remaining, float)
    assert_type(await job.acquire(wait=None), Leases)
    assert_type(await job.try_acquire(priority=3), Leases | None)


def blocking_several(client: dibs.sync.Client) -> None:
    both = dibs.sync.AllOf(client.lock("a"), (client.semaphore("gpu", 4), 2))
    with both as leases:
        assert_type(leases, dibs.sync.Leases)
        assert_type(leases[1], dibs.sync.Lease)
    assert_type(both.acquire(), dibs.sync.Leases)
    assert_type(both.try_acquire(), dibs.sync.Leases | None)


async def tasks_and_leaders(client: dibs.Client) -> None:
    task = client.task_lock("t", "10s", max_hold="1m", cancel=True)
    assert_type(task, TaskLock)
    assert_type(TaskLock("t"), TaskLock)
    async with task as hold:
        assert_type(hold, TaskLease)
    async with task.acquire(note="why") as hold:
        assert_type(hold, TaskLease)
    assert_type(await task.try_acquire(), TaskLease | None)
    assert_type(task.min_hold, float)
    assert_type(TaskLock.from_config("t", TaskLockConfig(min_hold=0, max_hold=1)), TaskLock)
    leader = client.leader_election("l", ttl="15s", on_started=print, on_stopped=term_ended)
    assert_type(leader, LeaderElection)
    assert_type(LeaderElection.from_config("l", LeaderConfig(retry=1)), LeaderElection)
    async with leader as term:
        assert_type(term, Term)
        assert_type(term.number, int)
    async with leader.campaign() as campaign:
        assert_type(campaign, Campaign)
        assert_type(await campaign.wait("1s"), bool)
        assert_type(await campaign.wait_lost(), bool)
        assert_type(campaign.term, Term | None)
        async with campaign.guard() as term:
            assert_type(term, Term)
    assert_type(await leader.who(), Holder | None)
    assert_type(leader.resign(), bool)
    assert_type(await leader.run(lead, ready=print), int | None)


async def lead(term: Term) -> int:
    return term.token


def lead_in_a_thread(term: dibs.sync.Term) -> str:
    return term.owner


async def term_ended(term: Term) -> None:
    assert_type(await term.wait_lost(), bool)


async def on_loss(client: dibs.Client, blocking: dibs.sync.Client) -> None:
    Lock("a", on_lost=lost)
    client.lock("a", on_lost=lost)
    client.semaphore("a", 2, on_lost=lost)
    client.rwlock("a", on_lost=reader_lost)
    client.task_lock("a", on_lost=lost)
    Lock.from_config("a", LockConfig(), on_lost=lost)
    blocking.lock("a", on_lost=blocking_lost)
    dibs.sync.Semaphore("a", 2, on_lost=blocking_lost)


def lost(lease: Lease) -> None:
    assert_type(lease.lost, bool)


def reader_lost(lease: RWLease) -> None:
    assert_type(lease.mode, Literal["read", "write"])


def blocking_lost(lease: dibs.sync.Lease) -> None:
    assert_type(lease.release(), bool)


def blocking_tasks_and_leaders(client: dibs.sync.Client) -> None:
    with client.task_lock("t", 1, 2) as hold:
        assert_type(hold, dibs.sync.TaskLease)
    assert_type(client.task_lock("t", 1, 2).acquire(), dibs.sync.TaskLease)
    leader = client.leader_election("l")
    with leader as term:
        assert_type(term, dibs.sync.Term)
    with leader.campaign() as campaign, campaign.guard() as term:
        assert_type(term, dibs.sync.Term)
        assert_type(campaign.wait(1), bool)
        assert_type(campaign.is_leader(), bool)
    assert_type(leader.who(), Holder | None)
    assert_type(leader.run(lead_in_a_thread), str | None)


@TaskLock.wraps("report:{day}", min_hold="1m", max_hold="1h", on_busy="skip")
def once(day: datetime.date) -> int:
    return day.year


def blocking() -> None:
    with dibs.sync.Lock("a") as lease:
        assert_type(lease, dibs.sync.Lease)
        assert_type(lease.renew("1m"), None)
        assert_type(lease.release(), bool)
    with dibs.sync.Lock("a").acquire(units=1) as lease:
        assert_type(lease.owner, str)
    dibs.sync.Lock("a").acquire(within=object())
    assert_type(dibs.sync.Lock("a").try_acquire(), dibs.sync.Lease | None)
    with dibs.sync.connect() as client:
        assert_type(client.list(), Iterator[Status])
        assert_type(client.lock("a").locked(), bool)
        assert_type(client.attach("handle"), dibs.sync.Lease)


@Lock.wraps("report:{day}", on_busy="skip", ttl="1m")
async def report(day: datetime.date) -> int:
    return day.year


@Lock.wraps("report:{day}", on_busy="skip", default="busy", on_lost=lost)
async def report_or_text(day: datetime.date) -> int:
    return day.year


@Semaphore.wraps("gpu", 4, wait="1m", require={"durable"})
async def train(day: datetime.date) -> int:
    return day.year


@dibs.sync.Semaphore.wraps("gpu", 4, on_busy="skip", default=False)
def try_to_train(day: datetime.date) -> int:
    return day.year


class Reports:
    @dibs.sync.Lock.wraps("reports", on_busy="skip")
    def refresh(self, number: int) -> str:
        return str(number)


@dibs.sync.Lock.wraps("report:{day}")
def plain_report(day: datetime.date) -> int:
    return day.year


async def decorated() -> None:
    assert_type(dibs.current_lease(), Lease)
    assert_type(await dibs.current_lease().renew(), None)
    assert_type(dibs.sync.current_lease(), dibs.sync.Lease)
    assert_type(dibs.current_lease().token, int)
    assert_type(await report(datetime.date(2026, 3, 1)), int | None)
    assert_type(await report_or_text(datetime.date(2026, 3, 1)), int | str)
    assert_type(await train(datetime.date(2026, 3, 1)), int)
    assert_type(try_to_train(day=datetime.date(2026, 3, 1)), int | bool)
    assert_type(Reports().refresh(3), str | None)
    assert_type(plain_report(day=datetime.date(2026, 3, 1)), int)
    assert_type(once(datetime.date(2026, 3, 1)), int | None)


async def wrong() -> None:
    Lock("a", ttl=[])  # type: ignore[arg-type]
    Lock("a", timeout=3)  # type: ignore[call-arg]
    Lock("a").acquire(5)  # type: ignore[arg-type]
    await dibs.sync.Lock("a").acquire()  # type: ignore[misc]
    await report("today")  # type: ignore[arg-type]
