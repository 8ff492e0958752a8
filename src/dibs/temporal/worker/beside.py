"""A worker of the permit queue beside an application's workers: one for all that share a client."""

import asyncio
from types import TracebackType
from weakref import WeakKeyDictionary

from temporalio.client import Client

from dibs.temporal.worker.worker import TemporalWorker


class ServedBeside:
    """A block in which permits are served in this process.

    Temporal has one worker for each queue and client, so the first to enter starts it, all wait until it is
    ready, and the last to leave stops it. One that others have started by themselves serves as well.
    """

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue

    async def __aenter__(self) -> None:
        running = _running.setdefault(self._client, {})
        while (found := running.get(self._queue)) is not None and found.ending is not None:
            await asyncio.wait({found.ending})
        if found is None:
            found = running[self._queue] = _Shared(self._client, self._queue)
        self._shared = found
        found.users += 1
        try:
            await found.started()
        except BaseException:
            await self._leave()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        """Whoever is cancelled meanwhile leaves all the same, and the worker drains."""
        shared = self._shared
        shared.users -= 1
        if not shared.users:
            shared.ending = asyncio.ensure_future(self._end(shared))
            await asyncio.shield(shared.ending)

    async def _end(self, shared: "_Shared") -> None:
        try:
            await shared.stop()
        finally:
            _running[self._client].pop(self._queue, None)


class _Shared:
    """The worker, and how many need it. Nobody's cancellation stops it while another does."""

    def __init__(self, client: Client, queue: str) -> None:
        self.users = 0
        self.ending: asyncio.Future[None] | None = None
        """The last has left: who comes now has to wait for the end."""
        self.worker: TemporalWorker | None = None
        self._starting: asyncio.Future[TemporalWorker] | None = None
        try:
            self.worker = TemporalWorker(client, task_queue=queue)
        except RuntimeError as error:
            if "multiple workers" not in str(error):
                raise

    async def started(self) -> None:
        """Until it is ready. Raises why it can't be."""
        if self.worker is None:
            return
        if self._starting is None:
            self._starting = asyncio.ensure_future(self.worker.__aenter__())
        await asyncio.shield(self._starting)

    async def stop(self) -> None:
        """It drains, also where it has not yet begun."""
        starting = self._starting
        if self.worker is None or starting is None:
            return
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
        elif not starting.cancelled() and starting.exception() is None:
            await self.worker.__aexit__(None, None, None)


_running: "WeakKeyDictionary[Client, dict[str, _Shared]]" = WeakKeyDictionary()
