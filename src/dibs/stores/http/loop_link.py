"""The connections of an event loop to the service: for requests, and for notifications."""

import asyncio
from collections.abc import Callable

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Notification
from dibs.stores.http.errors import broken, unreachable
from dibs.stores.http.requests import Requests
from dibs.stores.http.stream import StreamReader
from dibs.stores.http.url import HttpSettings
from dibs.stores.web.links import WebLink, connect
from dibs.stores.web.reading import Response


class AsyncHttpLink(WebLink):
    """A connection to the service: one request at a time. It cannot be used again after an error."""

    def __init__(self, loop: asyncio.AbstractEventLoop, requests: Requests) -> None:
        super().__init__(loop)
        self.requests = requests


async def dial(settings: HttpSettings) -> AsyncHttpLink:
    """Connect, in the running loop. Raises `DibsError`."""
    link = AsyncHttpLink(asyncio.get_running_loop(), Requests(settings))
    try:
        await connect(link, settings)
    except OSError as error:
        raise unreachable(error, settings) from error
    return link


class AsyncHttpStream:
    """A connection on which notifications arrive, and whose silence is noticed."""

    def __init__(self, settings: HttpSettings, hear: Callable[[list[Notification]], None]) -> None:
        self.error: DibsError | None = None
        """Why the stream ended."""
        self._settings = settings
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._stands: asyncio.Future[None] = self._loop.create_future()
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """Connect, ask for the stream, and wait until it works. Raises `DibsError`."""
        self.link = link = await dial(self._settings)
        self.reader = StreamReader(link.requests)
        link.reader.heed = self._heed
        link.launch(link.requests.stream(), self._over)
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                await self._stands
        except TimeoutError as error:
            self.end()
            raise BackendUnavailable(
                f"{self._settings.shown} did not begin its stream in time"
            ) from error
        except BaseException:
            self.end()
            raise
        self._look()

    def _heed(self, answer: Response) -> Callable[[bytes], None] | None:
        return None if self.reader.heed(answer) is None else self._hear_piece

    def _hear_piece(self, piece: bytes) -> None:
        self._heard_at = self._loop.time()
        self.reader(piece)
        if self.reader.hello is not None and not self._stands.done():
            self._stands.set_result(None)
        heard = self.reader.take()
        if heard or self.reader.missed:
            self._hear(heard)

    def _over(self, found: Response | Exception) -> None:
        """The stream has ended, or the answer was none."""
        if self.error is not None:
            return
        try:
            self.reader.ended(found)
        except Exception as error:  # noqa: BLE001  # whoever listens is told in our own words
            self.error = broken(error, self._settings)
        self._stop()
        if self._stands.done():
            self._hear([])
        else:
            self._stands.set_exception(self.error)

    def _look(self) -> None:
        """Check that something arrived since the last check, at least a comment."""
        due = self._heard_at + self.reader.longest
        if self._loop.time() >= due:
            self._over(TimeoutError())
            self.link.close()
        else:
            self._timer = self._loop.call_at(due, self._look)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        """Close it."""
        self._stop()
        if self.error is None:
            self.error = BackendUnavailable("the stream was closed")
        self.link.close()
