"""Brokers for tests: workers that serve them, and short ways to call them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any
from uuid import uuid4

from temporalio.client import Client, WithStartWorkflowOperation, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from dibs.core.codec import decode_reply, encode
from dibs.model import Acquire, Command, Reply, Status
from dibs.stores.temporal import ids
from dibs.stores.temporal.wire import (
    BrokerAnswer,
    BrokerCall,
    BrokerInput,
    Waited,
    text_of,
    unpack_command,
)
from dibs.temporal.broker.owners import inbox_of
from dibs.temporal.broker.workflow import DibsBroker
from tests.servers.temporal import TemporalServer
from tests.temporal.broker_flows import BriskBroker, Crowd, HastyBroker, Waiter
from tests.temporal.workers import connected, unique, worker


class Brokered:
    """One test's task queue, and one key of it."""

    def __init__(self, client: Client, queue: str, key: bytes = b"") -> None:
        self.client = client
        self.queue = queue
        self.key = key or b"lock:" + uuid4().hex.encode()

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(ids.broker_id(self.key))

    async def call(self, *commands: Command, **about: Any) -> BrokerAnswer:
        """A batch by update-with-start, as plain clients call; sent again where a run just ended."""
        started = BrokerInput(text_of(self.key), **about.pop("start", {}))
        call = BrokerCall([encode(command) for command in commands], **about)
        while True:
            try:
                return await self._call_once(started, call)
            except RPCError as error:
                if error.status not in PASSING:
                    raise

    async def _call_once(self, started: BrokerInput, call: BrokerCall) -> BrokerAnswer:
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            ids.BROKER,
            started,
            id=ids.broker_id(self.key),
            task_queue=self.queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        answer: BrokerAnswer = await self.client.execute_update_with_start_workflow(
            ids.APPLY, call, start_workflow_operation=start, result_type=BrokerAnswer
        )
        return answer

    async def apply(self, *commands: Command, **about: Any) -> list[Reply]:
        answer = await self.call(*commands, **about)
        return [decode_reply(packed, self.key) for packed in answer.replies]

    async def ask(self, command: Command, **about: Any) -> Reply:
        return (await self.apply(command, **about))[0]

    async def wait(self, inbox: str, after: int = 0) -> Waited:
        """As plain clients wait; sent again where a run just ended."""
        while True:
            try:
                found: Waited = await self.handle.execute_update(
                    ids.WAIT, args=[inbox, after], result_type=Waited
                )
            except RPCError as error:
                if error.status not in (*PASSING, RPCStatusCode.NOT_FOUND):
                    raise
            else:
                return found

    async def status(self) -> Status:
        found = decode_reply(await self.handle.query(ids.STATUS), self.key)
        assert isinstance(found, Status)
        return found

    async def until_waiting(self, many: int) -> None:
        while (await self.status()).waiting < many:
            await asyncio.sleep(0.02 if many < 50 else 0.5)

    def acquire(self, entry_id: str, **more: Any) -> Acquire:
        terms: dict[str, Any] = {"owner": f"owner of {entry_id[:4]}", "ttl": 30.0, "queue": True}
        return Acquire(self.key, entry_id, **{**terms, **more})

    async def waiter(
        self, entry_id: str, *, hold: float = 0, ttl: float = 60, **more: Any
    ) -> WorkflowHandle[Any, int]:
        """A workflow that waits in line. The broker must be there already."""
        handle: WorkflowHandle[Any, int] = await self.client.start_workflow(
            Waiter.run,
            args=[self.key.decode(), entry_id, hold, ttl, more],
            id=f"waiter:{uuid4().hex}",
            task_queue=self.queue,
        )
        return handle

    async def events(self, handle: WorkflowHandle[Any, Any] | None = None) -> list[Any]:
        """A history's events; of this broker's newest run."""
        history = await (handle or self.handle).fetch_history()
        return list(history.events)

    async def chain(self) -> list[list[Any]]:
        """The events of each of this broker's runs, oldest first."""
        newest = await self.events()
        run_id = newest[0].workflow_execution_started_event_attributes.first_execution_run_id
        found = []
        while run_id:
            handle = self.client.get_workflow_handle(self.handle.id, run_id=run_id)
            found.append(await self.events(handle))
            end = found[-1][-1].workflow_execution_continued_as_new_event_attributes
            run_id = end.new_execution_run_id
        return found

    async def commands(self) -> list[Command]:
        """What this broker's newest run was asked by signals, in order."""
        found: list[Command] = []
        for event in await self.events():
            for payload in event.workflow_execution_signaled_event_attributes.input.payloads:
                call = json.loads(payload.data)
                found += [unpack_command(packed, self.key) for packed in call["commands"]]
        return found

    async def asked(self) -> list[str]:
        """The waiters that have asked by signal, in the order in which the broker heard of them."""
        found = []
        for event in chain.from_iterable(await self.chain()):
            for payload in event.workflow_execution_signaled_event_attributes.input.payloads:
                call = json.loads(payload.data)
                if call["number"] == 1:
                    found.append(call["workflow_id"])
        return found


QUICK = SandboxedWorkflowRunner(
    restrictions=SandboxRestrictions.default.with_passthrough_modules("dibs", "tests")
)
"""The sandbox, without the half second in which it imports everything anew for each workflow."""

PASSING = (RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.ABORTED, RPCStatusCode.UNAVAILABLE)
"""A run that was about to end had to do its last task again, and its updates have to be sent again."""

SERVED: Sequence[type] = (DibsBroker, Waiter)


@asynccontextmanager
async def serving(
    address: str, *workflows: type, queue: str = "", **more: Any
) -> AsyncGenerator[Brokered]:
    """A worker of its own for a test, on a queue of its own."""
    client = await Client.connect(address, identity="a worker of the tests")
    queue = queue or f"test-{uuid4().hex}"
    more.setdefault("workflow_runner", QUICK)
    async with Worker(client, task_queue=queue, workflows=workflows or SERVED, **more):
        yield Brokered(client, queue)


@asynccontextmanager
async def unserved(server: TemporalServer) -> AsyncGenerator[Brokered]:
    """A key whose broker nobody serves, though those who ask are."""
    here = Brokered(await connected(server), unique("queue"))
    async with worker(here.client, Crowd, queue=f"{here.queue}-crowd", workflow_runner=QUICK):
        yield here


async def asked_at_once(here: Brokered, many: int) -> WorkflowHandle[Any, Any]:
    """Somebody holds it, and so many calls are in its broker's history, of a workflow that is returned."""
    await here.client.start_workflow(
        ids.BROKER, BrokerInput(text_of(here.key)), id=here.handle.id, task_queue=here.queue
    )
    holds = BrokerCall([encode(here.acquire("holder", ttl=600.0))], 0, "nobody", "no-run")
    await here.handle.signal(ids.APPLY, holds)
    crowd = await here.client.start_workflow(
        Crowd.run,
        args=[here.key.decode(), many],
        id=unique("crowd"),
        task_queue=f"{here.queue}-crowd",
    )
    while len(await here.events()) < many + 3:  # the start, its task, the holder's call, and these
        await asyncio.sleep(0.05)
    return crowd


__all__ = [
    "BriskBroker",
    "Brokered",
    "Crowd",
    "HastyBroker",
    "Waiter",
    "inbox_of",
    "serving",
]
