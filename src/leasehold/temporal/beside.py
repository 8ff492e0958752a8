"""A worker of the permit queue beside an application's workers: one for all that share a client."""

from types import TracebackType
from weakref import WeakKeyDictionary

from temporalio.client import Client

from leasehold.temporal.selfcheck import warn_if_unserved
from leasehold.temporal.worker import TemporalWorker


class ServedBeside:
    """A block in which permits are served in this process.

    Temporal has one worker for each queue and client, so the first to enter starts it, and the last to leave
    stops it. One that others have started by themselves serves as well; where it has stopped meanwhile, it is
    said that nobody does.
    """

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue

    async def __aenter__(self) -> None:
        running = _running.setdefault(self._client, {})
        shared = running.get(self._queue)
        if shared is None:
            shared = running[self._queue] = _Shared(self._client, self._queue)
        self._shared = shared
        shared.users += 1
        if shared.worker is None:
            await warn_if_unserved(self._client, self._queue)
        elif shared.users == 1:
            try:
                await shared.worker.__aenter__()
            except BaseException:
                running.pop(self._queue, None)
                raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shared.users -= 1
        if not self._shared.users:
            _running[self._client].pop(self._queue, None)
            if self._shared.worker is not None:
                await self._shared.worker.__aexit__(kind, error, trace)


class _Shared:
    def __init__(self, client: Client, queue: str) -> None:
        self.users = 0
        self.worker: TemporalWorker | None = None
        try:
            self.worker = TemporalWorker(client, task_queue=queue)
        except RuntimeError as error:
            if "multiple workers" not in str(error):
                raise


_running: "WeakKeyDictionary[Client, dict[str, _Shared]]" = WeakKeyDictionary()
