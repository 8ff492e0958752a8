"""A batch on its way without a task of its own: its landing is called as soon as the answer is read.

An event loop takes two turns less for it than for a coroutine that is awaited, and while the server works
at one batch, the tasks that the last one woke go on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from leasehold.backends.postgres import applying
from leasehold.backends.postgres.loop_wire import LoopWire
from leasehold.backends.postgres.site import Site
from leasehold.backends.postgres.trouble import SqlError, Unfit, cut_off
from leasehold.backends.postgres.wire import Answer, rows_of
from leasehold.errors import BackendUnavailable, LeaseholdError
from leasehold.model import Command, Reply

type Land = Callable[[Sequence[Reply] | LeaseholdError], None]
type Apply = Callable[[Sequence[Command]], Awaitable[Sequence[Reply]]]


class Launcher:
    """Batches to a database that is connected."""

    def __init__(self, site: Site, note: Callable[[applying.Told], None], apply: Apply) -> None:
        self._site = site
        self._note = note
        """Is told what a batch brought."""
        self._apply = apply
        """The ordinary way, for what the short one can't settle."""
        self._tasks: set[asyncio.Task[None]] = set()

    def launch(
        self, wire: LoopWire, commands: Sequence[Command], inbox: str, land: Land
    ) -> Callable[[], None] | None:
        """Send a batch now, or when its turn comes; what gives it up. None: it must go by `apply`."""
        try:
            call = applying.call_for(self._site, commands, inbox)
        except (Unfit, UnicodeError):
            return None

        def landed(found: Answer | Exception) -> None:
            if isinstance(found, (SqlError, UnicodeError)):
                return self._otherwise(commands, land)
            if isinstance(found, Exception):
                return land(cut_off(found, self._site.place))
            try:
                told = call.read(rows_of(found))
            except SqlError:
                return self._otherwise(commands, land)
            self._note(told)
            land(told[0])

        wire.start(lambda: wire.send(call.statement, call.values), landed)
        return wire.cut

    def _otherwise(self, commands: Sequence[Command], land: Land) -> None:
        """The server did nothing and said why: the ordinary way knows what to do."""
        task = asyncio.get_running_loop().create_task(self._apply_and_land(commands, land))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _apply_and_land(self, commands: Sequence[Command], land: Land) -> None:
        try:
            replies = await self._apply(commands)
        except LeaseholdError as error:
            land(error)
        except BaseException as error:
            land(BackendUnavailable(f"the store failed: {error!r}"))
            raise
        else:
            land(replies)
