"""Whether there is anybody to answer a call; and what to say where there isn't."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from dibs.errors import DibsError
from dibs.model import Reply
from dibs.stores.temporal.client.connecting import Connection
from dibs.stores.temporal.client.pollers import attended, last_heard, queue_of
from dibs.stores.temporal.client.trouble import astray, deaf, no_worker, silent
from dibs.stores.temporal.client.updating import Update
from dibs.stores.temporal.protocol import ids
from dibs.stores.temporal.unheeded import unheeded

DOUBT = 1.0
"""After so many seconds without an answer we ask whether anybody serves the queue."""

GRACE = 0.5
"""A worker that has just been started is not known at once: we look again for so many seconds.

Less than anybody waits for an answer: else they give up before we can tell that nobody serves the queue.
"""

SHORTEST = 0.01
"""No call is given less, however late it is on a busy machine: Temporal's client can't take that."""

LOOKS = 0.1
"""Between two looks whether anybody serves the queue, in seconds."""


class Attendance:
    """What one event loop's calls know of those who are to answer them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_sure = False
        """Somebody serves the queue, and nothing has been heard to the contrary since."""

    async def watched(self, call: Update, until: float, timeout: float) -> Sequence[Reply]:
        """Make the call; if no answer comes soon, see whether there is anybody to give one."""
        left = max(until - time.monotonic(), SHORTEST)
        sent = unheeded(asyncio.ensure_future(call.send(left)))
        try:
            await asyncio.wait((sent,), timeout=min(DOUBT, left / 2))
            if not sent.done():
                self._is_sure = False
                await self._answered_or_served(sent, call.key, left / 2)
            await asyncio.wait((sent,), timeout=max(until - time.monotonic(), 0))
            if not sent.done():  # it was taken, and is not answered
                raise await self.silence(call.key, timeout)
            return await sent
        finally:
            await _give_up(sent)

    async def _answered_or_served(
        self, sent: asyncio.Future[Any], key: bytes, within: float
    ) -> None:
        """Whichever comes first. Raises what is to be said if it is neither."""
        looking = unheeded(asyncio.ensure_future(self.require(key, within, by_broker=True)))
        try:
            await asyncio.wait((sent, looking), return_when=asyncio.FIRST_COMPLETED)
            if not sent.done():
                await looking
        finally:
            await _give_up(looking)

    async def require(self, key: bytes, within: float, *, by_broker: bool = False) -> None:
        """Look for a moment, unless we are sure. Raises `BackendUnavailable` if nobody serves its queue.

        Ours will do as a rule; where a broker did not answer it is its own that counts. Where it can't be
        told whether somebody does, the call is to tell.
        """
        until = time.monotonic() + min(GRACE, within)
        while not self._is_sure:
            queue, heard = "", None
            if not by_broker:
                queue, heard = await self._heard_of_ours()
            if heard is None:
                queue, heard = await self._heard(key)
            self._is_sure = attended(heard) == "yes"
            if heard is not None:
                return
            is_ours = queue == self._connection.settings.task_queue
            if time.monotonic() >= until or (by_broker and not is_ours):
                raise self._unserved(queue, key)
            await asyncio.sleep(LOOKS)

    async def silence(self, key: bytes, timeout: float) -> DibsError:
        """What to say after so many seconds without an answer."""
        target = self._connection.target
        try:
            async with asyncio.timeout(DOUBT):
                queue, heard = await self._heard(key)
        except TimeoutError:
            return deaf(target, timeout)
        except DibsError as error:
            return error
        if heard is None:
            return self._unserved(queue, key)
        return silent(target, queue, timeout, heard)

    def _unserved(self, queue: str, key: bytes) -> DibsError:
        target, ours = self._connection.target, self._connection.settings.task_queue
        return (
            no_worker(target, queue) if queue == ours else astray(target, queue, ids.broker_id(key))
        )

    async def _heard_of_ours(self) -> tuple[str, float | None]:
        """Our queue, on which most brokers are, and how long ago a worker of it was heard of."""
        queue = self._connection.settings.task_queue
        return queue, await last_heard(await self._connection.client(), queue)

    async def _heard(self, key: bytes) -> tuple[str, float | None]:
        """Likewise of the key's broker.

        A broker stays on the queue that it was started on; one that is still to be started comes on ours.
        """
        client = await self._connection.client()
        queue = await queue_of(client, ids.broker_id(key)) or self._connection.settings.task_queue
        return queue, await last_heard(client, queue)


async def _give_up(task: asyncio.Future[Any]) -> None:
    """Nobody waits for it any more; it has a moment to end."""
    if not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=LOOKS)
