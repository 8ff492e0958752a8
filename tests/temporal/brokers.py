"""Brokers and mailboxes for tests: workers that serve them, and short ways to speak to them."""

import asyncio
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

from leasehold.backends.temporal import ids
from leasehold.backends.temporal.broker import LeaseholdBroker
from leasehold.backends.temporal.broker_desk import inbox_of
from leasehold.backends.temporal.mailbox import LeaseholdMailbox, MailboxInput
from leasehold.backends.temporal.wire import (
    Answer,
    BrokerInput,
    Call,
    News,
    pack_command,
    text_of,
    unpack_reply,
    unpack_wakeup,
)
from leasehold.model import Acquire, Command, Release, Reply, Status, Wakeup


@workflow.defn(name=ids.BROKER)
class HastyBroker(LeaseholdBroker):
    """Leaves its history behind often, and ends soon."""

    EVENTS = 60
    IDLE = 1.0

    @workflow.init
    def __init__(self, given: BrokerInput) -> None:
        super().__init__(given)

    @workflow.run
    async def run(self, given: BrokerInput) -> None:
        await super().run(given)


@workflow.defn(name=ids.BROKER)
class BriskBroker(LeaseholdBroker):
    """Leaves its history behind now and then."""

    EVENTS = 300

    @workflow.init
    def __init__(self, given: BrokerInput) -> None:
        super().__init__(given)

    @workflow.run
    async def run(self, given: BrokerInput) -> None:
        await super().run(given)


@workflow.defn(name=ids.BROKER)
class LaterBroker(HastyBroker):
    """As a later release may be: it does something more, which is guarded."""

    @workflow.init
    def __init__(self, given: BrokerInput) -> None:
        super().__init__(given)
        self._has_told = False

    @workflow.run
    async def run(self, given: BrokerInput) -> None:
        await super().run(given)

    def _work(self) -> None:
        if not self._has_told and self._may_tell():
            self._has_told = True
            workflow.upsert_memo({"served by": "a later release"})
        super()._work()

    def _may_tell(self) -> bool:
        return workflow.patched("leasehold-tells")


@workflow.defn(name=ids.BROKER)
class RashBroker(LaterBroker):
    """The same without the guard."""

    @workflow.init
    def __init__(self, given: BrokerInput) -> None:
        super().__init__(given)

    @workflow.run
    async def run(self, given: BrokerInput) -> None:
        await super().run(given)

    def _may_tell(self) -> bool:
        return True


@workflow.defn(name=ids.MAILBOX)
class HastyMailbox(LeaseholdMailbox):
    """Leaves its history behind often, and ends soon."""

    EVENTS = 40
    LINGER = 1.0

    @workflow.init
    def __init__(self, given: MailboxInput | None = None) -> None:
        super().__init__(given)

    @workflow.run
    async def run(self, given: MailboxInput | None = None) -> None:
        await super().run(given)


@workflow.defn
class Waiter:
    """A workflow that asks a broker for a lease, keeps it a moment, and gives it back: in bare signals."""

    def __init__(self) -> None:
        self._answers: dict[int, Reply] = {}
        self._pushes: list[Wakeup] = []
        self._leave = False

    @workflow.signal(name=ids.NEWS)
    def news(self, news: News) -> None:
        key = b"lock:x"
        for answer in news.answers:
            self._answers[answer.number] = unpack_reply(answer.replies[0], key)
        self._pushes += [unpack_wakeup(packed, key) for packed in news.wakeups]

    @workflow.signal
    def leave(self) -> None:
        self._leave = True

    @workflow.run
    async def run(
        self, key: str, entry_id: str, hold: float, ttl: float, more: dict[str, Any]
    ) -> int:
        """Returns its token. It leaves at once, or after `hold`, or if that is -1 when it is told to."""
        broker = workflow.get_external_workflow_handle(ids.broker_id(key.encode()))
        info = workflow.info()
        fast = bool(more.pop("fast", False))
        more.setdefault("patience", 3e8)
        ask = Acquire(key.encode(), entry_id, info.workflow_id, ttl, queue=True, **more)
        call = Call([pack_command(ask)], 1, info.workflow_id, info.run_id, fast)
        await broker.signal(ids.APPLY, call)
        await workflow.wait_condition(lambda: 1 in self._answers)
        token = getattr(self._answers[1], "token", 0)
        if not token:
            await workflow.wait_condition(lambda: any(p.event == "granted" for p in self._pushes))
            token = next(p.token for p in self._pushes if p.event == "granted")
        if hold > 0:
            await workflow.sleep(hold)
        elif hold < 0:
            await workflow.wait_condition(lambda: self._leave)
        end = Release(key.encode(), entry_id)
        await broker.signal(ids.APPLY, Call([pack_command(end)], 2, info.workflow_id, info.run_id))
        await workflow.wait_condition(lambda: 2 in self._answers)
        return token


class Brokered:
    """One test's task queue, and one key of it."""

    def __init__(self, client: Client, queue: str, key: bytes = b"") -> None:
        self.client = client
        self.queue = queue
        self.key = key or b"lock:" + uuid4().hex.encode()

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(ids.broker_id(self.key))

    async def call(self, *commands: Command, **about: Any) -> Answer:
        """A batch by update-with-start, as plain clients call; sent again where a run just ended."""
        by_hand = about.get("at") is not None
        started = BrokerInput(text_of(self.key), by_hand=by_hand, **about.pop("start", {}))
        call = Call([pack_command(command) for command in commands], **about)
        while True:
            try:
                return await self._call_once(started, call)
            except RPCError as error:
                if error.status not in PASSING:
                    raise

    async def _call_once(self, started: BrokerInput, call: Call) -> Answer:
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            ids.BROKER,
            started,
            id=ids.broker_id(self.key),
            task_queue=self.queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        answer: Answer = await self.client.execute_update_with_start_workflow(
            ids.APPLY, call, start_workflow_operation=start, result_type=Answer
        )
        return answer

    async def apply(self, *commands: Command, **about: Any) -> list[Reply]:
        answer = await self.call(*commands, **about)
        return [unpack_reply(packed, self.key) for packed in answer.replies]

    async def ask(self, command: Command, **about: Any) -> Reply:
        return (await self.apply(command, **about))[0]

    async def status(self) -> Status:
        found = unpack_reply(await self.handle.query(ids.STATUS), self.key)
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
    restrictions=SandboxRestrictions.default.with_passthrough_modules("leasehold", "tests")
)
"""The sandbox, without the half second in which it imports everything anew for each workflow."""

PASSING = (RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.ABORTED, RPCStatusCode.UNAVAILABLE)
"""A run that was about to end had to do its last task again, and its updates have to be sent again."""

SERVED: Sequence[type] = (LeaseholdBroker, LeaseholdMailbox, Waiter)


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


__all__ = ["Brokered", "HastyBroker", "HastyMailbox", "Waiter", "inbox_of", "serving"]
