"""Slips that type checkers must find; each line with one says so, and a test counts them."""

import dibs
import dibs.sync
from dibs import (
    AllOf,
    Client,
    LeaderElection,
    Lock,
    RWLock,
    Semaphore,
    TaskLock,
    connect,
    current_lease,
)


def the_wrong_with() -> None:
    with Lock("a"):  # type: ignore[attr-defined]
        pass
    with Lock("a").acquire():  # type: ignore[attr-defined]
        pass
    Lock("a").release()  # type: ignore[attr-defined]
    dibs.sync.Lock("a").release()  # type: ignore[attr-defined]


async def the_wrong_async_with(lease: dibs.Lease, other: dibs.sync.Lease) -> None:
    async with dibs.sync.Lock("a"):  # type: ignore[attr-defined]
        pass
    async with dibs.sync.Semaphore("a", 2).acquire():  # type: ignore[attr-defined]
        pass
    async with other:  # type: ignore[attr-defined]
        pass
    with lease:  # type: ignore[attr-defined]
        pass


async def the_wrong_side(client: Client, blocking: dibs.sync.Client) -> None:
    async with RWLock("a"):  # type: ignore[attr-defined]
        pass
    with client.rwlock("a").read():  # type: ignore[attr-defined]
        pass
    async with blocking.rwlock("a").write():  # type: ignore[attr-defined]
        pass
    await RWLock("a").acquire()  # type: ignore[attr-defined]
    await RWLock("a").write().acquire(1)  # type: ignore[arg-type]
    await (await Lock("a").acquire()).upgrade()  # type: ignore[attr-defined]


async def of_task_locks_and_leaders(client: Client, blocking: dibs.sync.Client) -> None:
    TaskLock("a", 1, 2, wait=3)  # type: ignore[call-arg]
    client.task_lock("a", 1, 2, cancle=True)  # type: ignore[call-arg]
    await TaskLock("a", 1, 2).acquire(wait=3)  # type: ignore[call-arg]
    with client.task_lock("a", 1, 2):  # type: ignore[attr-defined]
        pass
    LeaderElection("a", wait=3)  # type: ignore[call-arg]
    client.leader_election("a", renew_dedline=3)  # type: ignore[call-arg]
    await LeaderElection("a").acquire()  # type: ignore[attr-defined]
    async with blocking.leader_election("a"):  # type: ignore[attr-defined]
        pass
    with client.leader_election("a").campaign():  # type: ignore[attr-defined]
        pass


async def several_at_once(client: Client, blocking: dibs.sync.Client) -> None:
    AllOf("a")  # type: ignore[arg-type]
    AllOf(blocking.lock("a"))  # type: ignore[arg-type]
    AllOf(client.rwlock("a"))  # type: ignore[arg-type]
    AllOf(client.task_lock("a", 1, 2))  # type: ignore[arg-type]
    AllOf((client.lock("a"), 2))  # type: ignore[arg-type]
    AllOf(client.lock("a"), timeout=3)  # type: ignore[call-arg]
    with AllOf(client.lock("a")):  # type: ignore[attr-defined]
        pass
    async with dibs.sync.AllOf(blocking.lock("a")):  # type: ignore[attr-defined]
        pass
    AllOf(client.lock("a")).release()  # type: ignore[attr-defined]


def misspelt(client: Client, blocking: dibs.sync.Client) -> None:
    Lock("a", tll=3)  # type: ignore[call-arg]
    Semaphore("a", 2, tll=3)  # type: ignore[call-arg]
    client.lock("a", wiat=3)  # type: ignore[call-arg]
    client.semaphore("a", 2, wiat=3)  # type: ignore[call-arg]
    blocking.lock("a", wiat=3)  # type: ignore[call-arg]
    connect("memory://", call_timeuot=3)  # type: ignore[call-arg]
    dibs.sync.connect("memory://", call_timeuot=3)  # type: ignore[call-arg]
    connect("memory://", name="reports")  # type: ignore[call-arg]
    Lock.wraps("a", on_bsuy="skip")  # type: ignore[call-overload]
    Lock.wraps("a", timeout=3)  # type: ignore[call-overload]
    Lock("a", require={"durble"})  # type: ignore[arg-type]
    client.semaphore("a", 2, require=["durble"])  # type: ignore[list-item]


def of_the_wrong_type(client: Client) -> None:
    Lock(42)  # type: ignore[arg-type]
    Lock("a", note=3)  # type: ignore[arg-type]
    Semaphore("a", 2, ttl=[])  # type: ignore[arg-type]
    Semaphore("a")  # type: ignore[call-arg]
    client.lock("a", wait=[])  # type: ignore[arg-type]
    connect("memory://", connect_timeout=None)  # type: ignore[arg-type]
    Lock.wraps("a", on_busy="wait")  # type: ignore[call-overload]
    Semaphore.wraps("a")  # type: ignore[call-overload]
    Lock("a").acquire(timeout=3)  # type: ignore[call-arg]
    client.lock("a", client=client)  # type: ignore[call-arg]
    dibs.set_default(3)  # type: ignore[arg-type]
    dibs.Client.named(3)  # type: ignore[arg-type]
    dibs.override(client, name=3)  # type: ignore[arg-type]
    dibs.override("memory://")  # type: ignore[arg-type]
    Lock.wraps("a", client=3)  # type: ignore[call-overload]
    print(current_lease().tokens)  # type: ignore[attr-defined]


def of_the_wrong_callbacks(client: Client, blocking: dibs.sync.Client) -> None:
    Lock("a", on_lost=takes_an_int)  # type: ignore[arg-type]
    client.rwlock("a", on_lost=takes_an_int)  # type: ignore[arg-type]
    blocking.lock("a", on_lost=takes_a_lease)  # type: ignore[arg-type]
    client.leader_election("a", on_started=takes_an_int)  # type: ignore[arg-type]
    client.task_lock("a", on_lost=takes_an_int)  # type: ignore[arg-type]


def takes_an_int(number: int) -> None: ...


def takes_a_lease(lease: dibs.Lease) -> None: ...


@Lock.wraps("a", on_busy="skip")
def skipped() -> int:
    return 1


def of_a_skipped_call() -> int:
    return skipped()  # type: ignore[return-value]


async def of_an_unknown_kind(client: Client) -> None:
    await client.status("a", "mutex")  # type: ignore[arg-type]
    await client.revoke("a", reason="why", kind="mutex")  # type: ignore[arg-type]
    await client.revoke("a")  # type: ignore[call-arg]
