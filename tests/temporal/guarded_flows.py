"""Workflows that use what is not for workflows. In the sandbox, with and without our plugin."""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ApplicationError

import dibs
from dibs import AllOf, LeaderElection, Lock, RWLock, Semaphore, TaskLock, connect, sync
from dibs.errors import InvalidName

# As in a module that has activities as well: none of it may keep the workflow from being loaded.
CLIENT = connect("sqlite:////nowhere/leases.db")


@Lock.wraps("report:{day}")
async def report(day: str) -> None: ...


@sync.Lock.wraps("report:{day}")
def report_blocking(day: str) -> None: ...


async def _attempt(way: str) -> None:
    match way:
        case "Lock":
            async with Lock("x"):
                pass
        case "Semaphore":
            await Semaphore("x", capacity=2).try_acquire()
        case "RWLock":
            async with RWLock("x").read():
                pass
        case "TaskLock":
            async with TaskLock("x", min_hold=1, max_hold=5):
                pass
        case "LeaderElection":
            async with LeaderElection("x"):
                pass
        case "AllOf":
            async with AllOf(Lock("x"), Lock("y")):
                pass
        case "client":
            await CLIENT.status("x")
        case "connect":
            async with dibs.connect("memory://") as client, client.lock("x"):
                pass
        case "bound":
            async with CLIENT.lock("x"):
                pass
        case "wraps":
            await report("monday")
        case "blocking":
            with sync.Lock("x"):
                pass
        case "blocking wraps":
            report_blocking("monday")
        case _:
            raise AssertionError(way)


@workflow.defn
class Tries:
    """What each way comes to."""

    @workflow.run
    async def run(self, ways: list[str]) -> dict[str, str]:
        told = {}
        for way in ways:
            try:
                await _attempt(way)
            except ApplicationError as error:
                told[way] = error.message
        return told


@workflow.defn
class Uses:
    """Uses a lock as if it were nothing."""

    @workflow.run
    async def run(self) -> None:
        async with Lock("x"):
            await asyncio.sleep(0)


@workflow.defn
class Raises:
    """An error of ours that is none of Temporal's."""

    @workflow.run
    async def run(self) -> None:
        raise InvalidName("it has no name")
