"""Brokers for tests: workers that serve them, workflows that speak to one, and short ways to call them."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any
from uuid import uuid4

from temporalio import workflow
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from dibs.core.codec import decode_notification, decode_reply, encode
from dibs.model import Acquire, Command, Notification, Release, Reply, Status
from dibs.stores.temporal import ids
from dibs.stores.temporal.wire import (
    BrokerAnswer,
    BrokerCall,
    BrokerInput,
    News,
    Waited,
    text_of,
)
from dibs.temporal.broker.workflow import DibsBroker
from tests.temporal.workers import poll, unique

QUICK = SandboxedWorkflowRunner(
    restrictions=SandboxRestrictions.default.with_passthrough_modules("dibs", "tests")
)
"""The sandbox, without the half second in which it imports everything anew for each workflow."""

ABOUT_TO_END = (
    RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.ABORTED, RPCStatusCode.UNAVAILABLE,
)  # fmt: skip
"""The run had to do its last task again, and its updates have to be sent again."""


@workflow.defn
class Waiter:
    """Asks for a lease, and gives it back at once, or after signal `leave`. Returns its token."""

    def __init__(self) -> None:
        self.answers: dict[int, Reply] = {}
        self.notifications: list[Notification] = []
        self.leaving = False

    @workflow.signal(name=ids.NEWS)
    def news(self, news: News) -> None:
        for answer in news.answers:
            (packed,) = answer.replies
            self.answers[answer.number] = decode_reply(packed, b"")
        self.notifications += [decode_notification(each, b"", "") for each in news.notifications]

    async def send(self, command: Command, number: int, *, fast: bool = False) -> None:
        info = workflow.info()
        broker = workflow.get_external_workflow_handle(ids.broker_id(command.key))
        call = BrokerCall([encode(command)], number, info.workflow_id, info.run_id, fast)
        await broker.signal(ids.APPLY, call)

    @workflow.signal
    def leave(self) -> None:
        self.leaving = True

    @workflow.run
    async def run(
        self, key: str, entry_id: str, hold: float, ttl: float, more: dict[str, Any]
    ) -> int:
        fast = bool(more.pop("fast", False))
        terms = {"waiter_ttl": 3e8, "queue": True, **more}
        owner = workflow.info().workflow_id
        await self.send(Acquire(key.encode(), entry_id, owner, ttl, **terms), 1, fast=fast)
        await workflow.wait_condition(lambda: 1 in self.answers)

        def tokens() -> list[int]:
            pushed = [each.token for each in self.notifications if each.event == "granted"]
            return [*filter(None, [getattr(self.answers[1], "token", 0)]), *pushed]

        await workflow.wait_condition(lambda: bool(tokens()))
        if hold:
            await workflow.wait_condition(lambda: self.leaving)
        await self.send(Release(key.encode(), entry_id), 2)
        await workflow.wait_condition(lambda: 2 in self.answers)
        return tokens()[0]


class Brokered:
    """One key, the task queue of its broker, and calls to it."""

    def __init__(self, client: Client, queue: str, key: bytes = b"") -> None:
        self.client = client
        self.queue = queue
        self.key = key or b"lock:" + uuid4().hex.encode()

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(ids.broker_id(self.key))

    async def call(self, *commands: Command, **about: Any) -> BrokerAnswer:
        """A batch by update-with-start, as plain clients call; sent again if the run just ended."""
        call = BrokerCall([encode(command) for command in commands], **about)
        while True:
            start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
                ids.BROKER,
                BrokerInput(text_of(self.key)),
                id=ids.broker_id(self.key),
                task_queue=self.queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            )
            try:
                answer: BrokerAnswer = await self.client.execute_update_with_start_workflow(
                    ids.APPLY, call, start_workflow_operation=start, result_type=BrokerAnswer
                )
            except RPCError as error:
                if error.status not in ABOUT_TO_END:
                    raise
            else:
                return answer

    async def ask(self, command: Command, **about: Any) -> Reply:
        answer = await self.call(command, **about)
        return decode_reply(answer.replies[0], self.key)

    async def release(self, entry_id: str) -> None:
        await self.ask(Release(self.key, entry_id))

    async def wait(self, inbox: str, after: int = 0) -> Waited:
        """As plain clients wait; sent again if the run just ended."""
        while True:
            try:
                found: Waited = await self.handle.execute_update(
                    ids.WAIT, args=[inbox, after], result_type=Waited
                )
            except RPCError as error:
                if error.status not in (*ABOUT_TO_END, RPCStatusCode.NOT_FOUND):
                    raise
            else:
                return found

    async def status(self) -> Status:
        found = decode_reply(await self.handle.query(ids.STATUS), self.key)
        assert isinstance(found, Status)
        return found

    async def until_waiting(self, many: int) -> None:
        every = 0.02 if many < 50 else 0.5
        await poll(self.status, lambda status: status.waiting >= many, every=every)

    def acquire(self, entry_id: str, **more: Any) -> Acquire:
        terms: dict[str, Any] = {"owner": f"owner of {entry_id[:4]}", "ttl": 30.0, "queue": True}
        return Acquire(self.key, entry_id, **{**terms, **more})

    async def waiter(
        self, entry_id: str, *, stays: bool = False, ttl: float = 60, **more: Any
    ) -> WorkflowHandle[Any, int]:
        """A workflow that waits in line. The broker must be there already."""
        handle: WorkflowHandle[Any, int] = await self.client.start_workflow(
            Waiter.run,
            args=[self.key.decode(), entry_id, float(stays), ttl, more],
            id=unique("waiter"),
            task_queue=self.queue,
        )
        return handle

    async def events(self, handle: WorkflowHandle[Any, Any] | None = None) -> list[Any]:
        """A history's events; of this broker's newest run."""
        history = await (handle or self.handle).fetch_history()
        return list(history.events)

    async def events_of(self, kind: str) -> list[Any]:
        """The attributes of events of one kind, of this broker's newest run."""
        name = f"{kind}_event_attributes"
        return [getattr(each, name) for each in await self.events() if each.HasField(name)]

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

    async def calls(self) -> list[dict[str, Any]]:
        """All calls by signals, in the order in which the server brought them to any run."""
        return [
            json.loads(payload.data)
            for event in chain.from_iterable(await self.chain())
            for payload in event.workflow_execution_signaled_event_attributes.input.payloads
        ]


@asynccontextmanager
async def serving(address: str, *workflows: type, **more: Any) -> AsyncGenerator[Brokered]:
    """A worker for the block, and a key on its queue."""
    client = await Client.connect(address, identity="a worker of the tests")
    queue = unique("queue")
    more.setdefault("workflow_runner", QUICK)
    served: Sequence[type] = workflows or (DibsBroker, Waiter)
    async with Worker(client, task_queue=queue, workflows=served, **more):
        yield Brokered(client, queue)
