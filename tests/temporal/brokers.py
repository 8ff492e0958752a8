"""Short ways to call a broker."""

from typing import Any
from uuid import uuid4

from temporalio.client import Client, WithStartWorkflowOperation, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from dibs.core.codec import decode_reply, encode
from dibs.model import Acquire, Command, Release, Reply, Status
from dibs.stores.temporal import ids
from dibs.stores.temporal.wire import (
    BrokerAnswer,
    BrokerCall,
    BrokerInput,
    Waited,
    text_of,
)

QUICK = SandboxedWorkflowRunner(
    restrictions=SandboxRestrictions.default.with_passthrough_modules("dibs", "tests")
)
"""The sandbox, without the half second in which it imports everything anew for each workflow."""

ABOUT_TO_END = (
    RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.ABORTED, RPCStatusCode.UNAVAILABLE,
)  # fmt: skip
"""The run had to do its last task again, and its updates have to be sent again."""


class Brokered:
    """One key, the task queue of its broker, and calls to it."""

    def __init__(self, client: Client, queue: str, key: bytes = b"") -> None:
        self.client = client
        self.queue = queue
        self.key = key or b"semaphore:" + uuid4().hex.encode()

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

    async def wait(self, inbox: str) -> Waited:
        """As plain clients wait; sent again if the run just ended."""
        while True:
            try:
                found: Waited = await self.handle.execute_update(
                    ids.WAIT, inbox, result_type=Waited
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

    def acquire(self, entry_id: str, **more: Any) -> Acquire:
        terms: dict[str, Any] = {"owner": f"owner of {entry_id[:4]}", "ttl": 30.0, "queue": True}
        return Acquire(self.key, entry_id, **{**terms, **more})

    async def events(self) -> list[Any]:
        """The history of this broker's newest run."""
        return list((await self.handle.fetch_history()).events)

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
            found.append(list((await handle.fetch_history()).events))
            end = found[-1][-1].workflow_execution_continued_as_new_event_attributes
            run_id = end.new_execution_run_id
        return found
