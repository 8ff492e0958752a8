"""One call of one key's broker, by an update that also starts it where there is none."""

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dibs.clock import Clock, SystemClock
from dibs.core import ledger
from dibs.core.book import MemoryBook
from dibs.core.codec import decode_reply, encode
from dibs.errors import IncompatibleVersion
from dibs.model import Acquire, Command, Release, Reply
from dibs.stores.temporal.client.connecting import Connection
from dibs.stores.temporal.client.trouble import is_no_namespace
from dibs.stores.temporal.protocol import ids, wire
from dibs.stores.temporal.protocol.wire import too_new

if TYPE_CHECKING:
    from temporalio.client import Client
    from temporalio.service import RPCError

MEMO = "dibs_key"
"""What a broker's memo calls its key, for lists: base64."""

_MULTIPLE = "ExecuteMultiOperation"
"""What a server calls an update together with a start."""

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
        self.key = key
        self._commands = commands
        at = None if clock is None else (clock.now(), clock.stamp())
        self._at = at
        packed = [encode(each) for each in commands]
        self._call = wire.BrokerCall(packed, at=at)
        self.starts = any(map(_leaves_something, commands))
        """It needs a broker, and starts it where there is none."""
        self.renumber()

    def renumber(self) -> None:
        """What was sent so far has failed for good: the next one is another call."""
        self._id = str(uuid.uuid4())

    async def send(self, timeout: float) -> Sequence[Reply]:
        """The replies. Raises Temporal's own errors."""
        client = await self._connection.client()
        seconds = timedelta(seconds=timeout)
        send = self._with_start if self.starts else self._without_start
        answer = await send(client, seconds)
        if answer is None:
            return self._nothing_there()
        newer = too_new("the answer", answer.format, "this release of Dibs", wire.FORMAT)
        if newer:
            raise IncompatibleVersion(f"{self._connection.target}: {newer}")
        return [decode_reply(each, self.key) for each in answer.replies]

    async def _with_start(self, client: "Client", seconds: timedelta) -> wire.BrokerAnswer:
        """One round trip, also where there is no broker yet; two with a server that can't do that."""
        from temporalio.service import RPCError

        if not self._connection.starts_apart:
            try:
                return await self._together(client, seconds)
            except RPCError as error:
                if not starts_apart(error):
                    raise
                self._connection.starts_apart = True
        return await self._apart(client, seconds)

    async def _together(self, client: "Client", seconds: timedelta) -> wire.BrokerAnswer:
        from temporalio.client import WithStartWorkflowOperation

        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(**self._start())
        try:
            found: wire.BrokerAnswer = await client.execute_update_with_start_workflow(
                ids.APPLY,
                self._call,
                start_workflow_operation=start,
                id=self._id,
                result_type=wire.BrokerAnswer,
                rpc_timeout=seconds,
            )
        except BaseException:
            # Or the loop complains that nobody has looked at it; there need not be one.
            with suppress(BaseException):
                async with asyncio.timeout(0):
                    await start.workflow_handle()
            raise
        return found

    async def _apart(self, client: "Client", seconds: timedelta) -> wire.BrokerAnswer:
        """A broker that ends in between is started anew by the next try, as one that ends at any time."""
        from temporalio.exceptions import WorkflowAlreadyStartedError

        with suppress(WorkflowAlreadyStartedError):  # a server so old knows no policy of conflicts
            await client.start_workflow(**self._start(), rpc_timeout=seconds)
        return await self._update(client, seconds)

    def _start(self) -> dict[str, Any]:
        """How a broker is started where there is none."""
        from temporalio.common import WorkflowIDConflictPolicy

        key = wire.text_of(self.key)
        return {
            "workflow": ids.BROKER,
            "arg": wire.BrokerInput(key, by_hand=self._at is not None),
            "id": ids.broker_id(self.key),
            "task_queue": self._connection.settings.task_queue,
            "id_conflict_policy": WorkflowIDConflictPolicy.USE_EXISTING,
            "memo": {MEMO: key},
            "static_summary": _summary(self.key),
        }

    async def _without_start(
        self, client: "Client", seconds: timedelta
    ) -> wire.BrokerAnswer | None:
        """What changes nothing where nothing is held needs no broker: None if there is none."""
        from temporalio.service import RPCError, RPCStatusCode

        try:
            return await self._update(client, seconds)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND and not is_no_namespace(error):
                return None
            raise

    async def _update(self, client: "Client", seconds: timedelta) -> wire.BrokerAnswer:
        """Call the broker, which has to be there."""
        broker = client.get_workflow_handle(ids.broker_id(self.key))
        found: wire.BrokerAnswer = await broker.execute_update(
            ids.APPLY, self._call, id=self._id, result_type=wire.BrokerAnswer, rpc_timeout=seconds
        )
        return found

    def _nothing_there(self) -> Sequence[Reply]:
        """No broker runs: nothing is held and nobody waits."""
        now, stamp = self._at or (_SYSTEM.now(), _SYSTEM.stamp())
        book = MemoryBook()
        return [ledger.apply(book, command, now, stamp)[0] for command in self._commands]


def starts_apart(error: "RPCError") -> bool:
    """Whether a server has refused because it takes no update together with a start.

    Before 1.24 none does; until it was always on, one on which it is off says so by another status.
    """
    from temporalio.service import RPCStatusCode

    off = error.status is RPCStatusCode.PERMISSION_DENIED and _MULTIPLE in error.message
    return off or error.status is RPCStatusCode.UNIMPLEMENTED


def _leaves_something(command: Command) -> bool:
    """It may change the book of a key of which nothing is known."""
    return isinstance(command, Acquire) or (isinstance(command, Release) and command.tombstone > 0)


def _summary(key: bytes) -> str:
    """What people read in Temporal's UI."""
    return f"leases of {key.decode('utf-8', 'backslashreplace')}"[:200]
