"""What a typed program sees of the public API where types are inferred; only checked, never run."""

import datetime
from typing import Literal, assert_type

import dibs
import dibs.sync
from dibs import AllOf, Lease, Leases, Lock, RWLease, Semaphore, TaskLease, TaskLock, Term, Waiting

TODAY = datetime.date(2026, 3, 1)


async def blocks(client: dibs.Client) -> None:
    async with Lock("a", ttl="30s", wait=datetime.timedelta(seconds=5)) as lease:
        assert_type(lease, Lease)
    assert_type(await Lock("a").acquire(wait=None, within=object(), on_wait=told), Lease)
    assert_type(await Lock("a", on_wait=told_later).try_acquire(), Lease | None)
    lock = client.rwlock("r", ttl="10s")
    async with lock.read() as reading:
        assert_type(reading, RWLease)
        assert_type(reading.mode, Literal["read", "write"])
    async with AllOf(client.lock("a"), (client.semaphore("gpu", 4), 2), lock.read()) as leases:
        assert_type(leases, Leases)
        assert_type(leases[0], Lease)
    async with client.task_lock("t", "10s", max_hold="1m", cancel=True) as hold:
        assert_type(hold, TaskLease)
    leader = client.leader_election("l", ttl="15s", on_started=print, on_stopped=term_ended)
    async with leader.campaign() as campaign, campaign.guard() as term:
        assert_type(term, Term)
    assert_type(await leader.run(lead, ready=print), int | None)


def told(waiting: Waiting) -> None:
    assert_type(waiting.estimate, float | None)


async def told_later(waiting: Waiting) -> None:
    assert_type(waiting.waited, float)


async def lead(term: Term) -> int:
    return term.token


async def term_ended(term: Term) -> None:
    assert_type(await term.wait_lost(), bool)


def blocking(client: dibs.sync.Client) -> None:
    with dibs.sync.Lock("a") as lease:
        assert_type(lease, dibs.sync.Lease)
        assert_type(lease.renew("1m"), None)
    with client.rwlock("r").read() as reading:
        assert_type(reading, dibs.sync.RWLease)
    with dibs.sync.AllOf(client.lock("a"), (client.semaphore("gpu", 4), 2)) as leases:
        assert_type(leases[1], dibs.sync.Lease)
    assert_type(client.leader_election("l").run(lead_in_a_thread), str | None)


def lead_in_a_thread(term: dibs.sync.Term) -> str:
    return term.owner


def on_loss(client: dibs.Client, blocking: dibs.sync.Client) -> None:
    Lock("a", on_lost=lost)
    client.rwlock("a", on_lost=reader_lost)
    blocking.lock("a", on_lost=blocking_lost)


def lost(lease: Lease) -> None:
    assert_type(lease.lost, bool)


def reader_lost(lease: RWLease) -> None:
    assert_type(lease.mode, Literal["read", "write"])


def blocking_lost(lease: dibs.sync.Lease) -> None:
    assert_type(lease.release(), bool)


@TaskLock.wraps("report:{day}", min_hold="1m", max_hold="1h", on_busy="skip")
def once(day: datetime.date) -> int:
    return day.year


@Lock.wraps("report:{day}", on_busy="skip", ttl="1m")
async def report(day: datetime.date) -> int:
    return day.year


@Lock.wraps("report:{day}", on_busy="skip", default="busy", on_lost=lost)
async def report_or_text(day: datetime.date) -> int:
    return day.year


@Lock.wraps("report:{day}", on_busy=lambda busy: busy.holders)
async def report_or_holders(day: datetime.date) -> int:
    return day.year


@Semaphore.wraps("gpu", 4, wait="1m", require={"durable"})
async def train(day: datetime.date) -> int:
    return day.year


class Reports:
    @dibs.sync.Lock.wraps("reports", on_busy="skip")
    def refresh(self, number: int) -> str:
        return str(number)


async def decorated() -> None:
    assert_type(dibs.current_lease(), Lease)
    assert_type(await dibs.current_lease().renew(), None)
    assert_type(dibs.sync.current_lease(), dibs.sync.Lease)
    assert_type(await report(TODAY), int | None)
    assert_type(await report_or_text(TODAY), int | str)
    assert_type(await report_or_holders(TODAY), int | tuple[dibs.Holder, ...])
    assert_type(await train(day=TODAY), int)
    assert_type(Reports().refresh(3), str | None)
    assert_type(once(TODAY), int | None)
