"""A stream in an event loop."""

import asyncio
from collections.abc import Callable

from dibs.backends.http.loop_link import dial
from dibs.backends.http.reading import Answer
from dibs.backends.http.settings import Settings
from dibs.backends.http.stream import Ear
from dibs.backends.http.trouble import broken
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Wakeup


class LoopStream:
    """A connection on which pushes arrive, and whose silence is noticed."""

    def __init__(self, settings: Settings, hear: Callable[[list[Wakeup]], None]) -> None:
        self.error: DibsError | None = None
        """Why nothing comes any more."""
        self._settings = settings
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._stands: asyncio.Future[None] = self._loop.create_future()
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """Connect, ask for the stream, and wait until it stands. Raises what is in the way."""
        self.link = link = await dial(self._settings)
        self.ear = Ear(link.dialogue)
        link.reader.heed = self._heed
        link.launch(link.dialogue.stream(), self._over)
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

    def _heed(self, answer: Answer) -> Callable[[bytes], None] | None:
        return None if self.ear.heed(answer) is None else self._hear_piece

    def _hear_piece(self, piece: bytes) -> None:
        self._heard_at = self._loop.time()
        self.ear(piece)
        if self.ear.hello is not None and not self._stands.done():
            self._stands.set_result(None)
        heard = self.ear.take()
        if heard or self.ear.missed:
            self._hear(heard)

    def _over(self, found: Answer | Exception) -> None:
        """The stream has ended, or never was one."""
        if self.error is not None:
            return
        try:
            self.ear.ended(found)
        except Exception as error:  # noqa: BLE001  # whoever listens is told in our own words
            self.error = broken(error, self._settings)
        self._stop()
        if self._stands.done():
            self._hear([])
        else:
            self._stands.set_exception(self.error)

    def _look(self) -> None:
        """Since the last look something should have come, at least a comment."""
        due = self._heard_at + self.ear.longest
        if self._loop.time() >= due:
            self._over(TimeoutError())
            self.link.close()
        else:
            self._timer = self._loop.call_at(due, self._look)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        """Hang up."""
        self._stop()
        if self.error is None:
            self.error = BackendUnavailable("the stream was closed")
        self.link.close()
