"""One call of one key's broker, by an update that also starts it where there is none."""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from leasehold.backends.temporal import ids, wire
from leasehold.backends.temporal.connecting import Connection
from leasehold.backends.temporal.trouble import too_new
from leasehold.clock import Clock, SystemClock
from leasehold.core import ledger
from leasehold.core.book import MemoryBook
from leasehold.model import Acquire, Command, Release, Reply

if TYPE_CHECKING:
    from temporalio.client import Client

MEMO = "leasehold_key"
"""What a broker's memo calls its key, for lists: base64."""

_SYSTEM = SystemClock()


class Update:
    """One call of a broker, which may be made more than once, and is then still applied once."""

    def __init__(
        self,
        connection: Connection,
        key: bytes,
        commands: Sequence[Command],
        clock: Clock | None,
    ) -> None:
        self._connection = connection
        self._key = key
        self._commands = commands
        at = None if clock is None else (clock.now(), clock.stamp())
        self._at = at
        self._share = any(map(connection.settings.shares, commands))
        packed = [wire.pack_command(each) for each in commands]
        self._call = wire.Call(packed, at=at, share=self._share)
        self.starts = any(map(_leaves_something, commands))
        """It needs a broker, and starts it where there is none."""
        self.renumber()

    def renumber(self) -> None:
        """What was sent so far has failed for good: the next one is another call."""
        self._id = str(uuid.uuid4())

    async def send(self, patience: float) -> Sequence[Reply]:
        """The replies. Raises Temporal's own errors."""
        client = await self._connection.client()
        seconds = timedelta(seconds=patience)
        send = self._with_start if self.starts else self._without_start
        answer = await send(client, seconds)
        if answer is None:
            return self._nothing_there()
        if answer.format > wire.FORMAT:
            raise too_new(answer.format, self._connection.target)
        return [wire.unpack_reply(each, self._key) for each in answer.replies]

    async def _with_start(self, client: "Client", seconds: timedelta) -> wire.Answer:
        """One round trip, also where there is no broker yet."""
        from temporalio.client import WithStartWorkflowOperation
        from temporalio.common import WorkflowIDConflictPolicy

        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            ids.BROKER,
            wire.BrokerInput(wire.text_of(self._key), self._share, by_hand=self._at is not None),
            id=ids.broker_id(self._key),
            task_queue=self._connection.settings.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            memo={MEMO: wire.text_of(self._key)},
            static_summary=_summary(self._key),
        )
        try:
            found: wire.Answer = await client.execute_update_with_start_workflow(
                ids.APPLY,
                self._call,
                start_workflow_operation=start,
                id=self._id,
                result_type=wire.Answer,
                rpc_timeout=seconds,
            )
        except BaseException:
            with suppress(BaseException):  # or the loop complains that nobody has looked at it
                await start.workflow_handle()
            raise
        return found

    async def _without_start(self, client: "Client", seconds: timedelta) -> wire.Answer | None:
        """What changes nothing where nothing is held needs no broker: None if there is none."""
        from temporalio.service import RPCError, RPCStatusCode

        try:
            found: wire.Answer = await client.get_workflow_handle(
                ids.broker_id(self._key)
            ).execute_update(
                ids.APPLY,
                self._call,
                id=self._id,
                result_type=wire.Answer,
                rpc_timeout=seconds,
            )
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND and "namespace" not in error.message.lower():
                return None
            raise
        return found

    def _nothing_there(self) -> Sequence[Reply]:
        """No broker runs: nothing is held and nobody waits."""
        now, stamp = self._at or (_SYSTEM.now(), _SYSTEM.stamp())
        book = MemoryBook()
        return [ledger.apply(book, command, now, stamp)[0] for command in self._commands]


def _leaves_something(command: Command) -> bool:
    """It may change the book of a key of which nothing is known."""
    return isinstance(command, Acquire) or (isinstance(command, Release) and command.bury > 0)


def _summary(key: bytes) -> str:
    """What people read in Temporal's UI."""
    return f"leases of {key.decode('utf-8', 'backslashreplace')}"[:200]
