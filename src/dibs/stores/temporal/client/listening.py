"""A connection's mailbox: a workflow that brokers push to, and the task that takes what has arrived.

It costs a workflow, so there is one only when somebody waits, or has held something for a while.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from dibs.core.codec import decode_notification
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Acquire, Command, Notification, Queued, Renew, Reply
from dibs.stores.temporal.client.connecting import Connection
from dibs.stores.temporal.protocol import ids, wire

log = logging.getLogger("dibs")

LONGEST = 55.0
"""So long one call waits for something to arrive, in seconds; then it is made again."""

FAREWELL = timedelta(seconds=1)


def inbox_of(command: Command) -> str:
    """Where its pushes go."""
    return command.inbox if isinstance(command, Acquire | Renew) else ""


class Ear:
    """One connection's mailbox, in the event loop that listens. Other loops may ask for it to be there."""

    def __init__(
        self, connection: Connection, hear: Callable[[Sequence[Notification] | DibsError], None]
    ) -> None:
        self.inbox = secrets.token_urlsafe(12)
        """Nobody can guess it: whoever may signal it can only wake us in vain."""
        self.stands = False
        self._connection = connection
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._taking: asyncio.Task[None] | None = None

    async def stand(self) -> None:
        """Let there be a mailbox; if that fails, whoever waits asks from time to time."""
        if self.stands:
            return
        from temporalio.common import WorkflowIDConflictPolicy
        from temporalio.service import RPCError

        try:
            client = await self._connection.client()
            await client.start_workflow(
                ids.MAILBOX,
                id=ids.mailbox_id(self.inbox),
                task_queue=self._connection.settings.task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                static_summary="what is pushed to one client of Dibs",
                rpc_timeout=timedelta(seconds=2),
            )
        except (RPCError, DibsError) as error:
            log.debug("no mailbox could be started: %s", error)
            return
        with suppress(RuntimeError):  # its loop is closed, and whoever listened has gone
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if not self.stands and self.inbox:
            self.stands = True
            self._taking = self._loop.create_task(self._take())
            self._taking._log_destroy_pending = False  # type: ignore[attr-defined]  # loops get closed

    async def _take(self) -> None:
        """Take what arrives, until something goes wrong."""
        from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError

        upto = 0
        try:
            client = await self._connection.client()
            mailbox = client.get_workflow_handle(ids.mailbox_id(self.inbox))
            while True:
                found = await mailbox.execute_update(ids.TAKE, args=[upto, LONGEST])
                upto = found["upto"]
                self._hear(_notifications(found["news"], self.inbox))
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            if not isinstance(error.__cause__, asyncio.CancelledError):
                self._lose(error)
        except Exception as error:  # noqa: BLE001 -- a converter's too: nobody else would hear of it
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        """The mailbox can't be read: whoever waits asks, and there will be another."""
        if self.stands:
            self.stands = False
            failure = BackendUnavailable(f"pushes may have been missed ({error})")
            failure.__cause__ = error
            self._hear(failure)

    async def close(self) -> None:
        """Listen no more, and let the mailbox end; which ends the call that waits there."""
        stood, self.stands = self.stands, False
        taking, self._taking = self._taking, None
        inbox, self.inbox = self.inbox, ""
        if stood and self._connection.is_made:
            with suppress(Exception):  # it ends by itself after a while
                client = await self._connection.client()
                mailbox = client.get_workflow_handle(ids.mailbox_id(inbox))
                await mailbox.terminate(reason="its client has closed", rpc_timeout=FAREWELL)
                if taking is not None:
                    await asyncio.wait((taking,), timeout=FAREWELL.total_seconds())
        if taking is not None and not taking.done():
            taking.cancel()
            await asyncio.wait((taking,), timeout=FAREWELL.total_seconds())


def _notifications(news: Sequence[Mapping[str, Any]], inbox: str) -> list[Notification]:
    """Pushes are hints: what can't be read is left out."""
    found = []
    for each in news:
        with suppress(KeyError, ValueError):
            key = wire.bytes_of(each["key"])
            found += [decode_notification(packed, key, inbox) for packed in each["notifications"]]
    return found


def asked_to_hear(ears: Mapping[str, Ear], commands: Sequence[Command]) -> list[Ear]:
    """The ears that must stand while these commands are applied.

    Who is ready to wait need not have one yet: most are granted at once.
    """
    found = {
        inbox
        for each in commands
        if (inbox := inbox_of(each)) and not (isinstance(each, Acquire) and each.queue)
    }
    return [ear for inbox in found if (ear := ears.get(inbox)) is not None and not ear.stands]


def waits_in_vain(
    ears: Mapping[str, Ear], commands: Sequence[Command], replies: Sequence[Reply]
) -> list[int]:
    """Which of these wait now for a push to an ear that does not stand."""
    return [
        number
        for number, (command, reply) in enumerate(zip(commands, replies, strict=True))
        if isinstance(reply, Queued)
        and (ear := ears.get(inbox_of(command))) is not None
        and not ear.stands
    ]
