"""Slips that type checkers must find: a comment that ignores an error which is not found is one itself."""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

import dibs
import dibs.sync
from dibs import AllOf, Client, Lock, RWLock, TaskLock, connect


async def the_wrong_with(client: Client) -> None:
    with Lock("a"):  # type: ignore[attr-defined]
        pass
    async with dibs.sync.Semaphore("a", 2).acquire():  # type: ignore[attr-defined]
        pass
    async with RWLock("a"):  # type: ignore[attr-defined]
        pass
    with client.leader_election("a").campaign():  # type: ignore[attr-defined]
        pass
    with AllOf(client.lock("a")):  # type: ignore[attr-defined]
        pass
    await dibs.sync.Lock("a").acquire()  # type: ignore[misc]


async def what_is_not_there(client: Client) -> None:
    Lock("a").release()  # type: ignore[attr-defined]
    await (await Lock("a").acquire()).upgrade()  # type: ignore[attr-defined]


async def misspelt(client: Client) -> None:
    Lock("a", tll=3)  # type: ignore[call-arg]
    client.semaphore("a", 2, wiat=3)  # type: ignore[call-arg]
    client.task_lock("a", 1, 2, cancle=True)  # type: ignore[call-arg]
    connect("memory://", call_timeuot=3)  # type: ignore[call-arg]
    Lock.wraps("a", on_bsuy="skip")  # type: ignore[call-overload]
    Lock("a", require={"durble"})  # type: ignore[arg-type]
    await client.status("a", "mutex")  # type: ignore[arg-type]


def arguments_of_others(client: Client) -> None:
    TaskLock("a", 1, 2, wait=3)  # type: ignore[call-arg]
    AllOf(client.lock("a"), timeout=3)  # type: ignore[call-arg]
    client.lock("a", client=client)  # type: ignore[call-arg]


def of_the_wrong_type(client: Client, blocking: dibs.sync.Client) -> None:
    Lock(42)  # type: ignore[arg-type]
    Lock.wraps("a", on_busy="wait")  # type: ignore[call-overload]
    AllOf(blocking.lock("a"))  # type: ignore[arg-type]
    AllOf(client.rwlock("a"))  # type: ignore[arg-type]
    AllOf((client.lock("a"), 2))  # type: ignore[arg-type]


def of_the_wrong_callbacks(client: Client, blocking: dibs.sync.Client) -> None:
    Lock("a", on_lost=takes_an_int)  # type: ignore[arg-type]
    blocking.lock("a", on_lost=takes_a_lease)  # type: ignore[arg-type]
    client.leader_election("a", on_started=takes_an_int)  # type: ignore[arg-type]


def takes_an_int(number: int) -> None: ...


def takes_a_lease(lease: dibs.Lease) -> None: ...


@Lock.wraps("a", on_busy="skip")
def skipped(number: int) -> int:
    return number


def of_a_decorated_call() -> int:
    skipped("one")  # type: ignore[arg-type]
    return skipped(1)  # type: ignore[return-value]
