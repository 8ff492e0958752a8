"""A batch on its way without a task of its own: its landing is called as soon as the answer is read.

An event loop takes two turns less for it than for a coroutine that is awaited, and a lone task waits for
each of them.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from leasehold.backends.redis.link import ReplyError
from leasehold.backends.redis.loop_link import LoopLink
from leasehold.backends.redis.script import read_answer
from leasehold.backends.redis.scripting import Terms
from leasehold.backends.redis.server import Server
from leasehold.backends.redis.trouble import broken
from leasehold.errors import BackendUnavailable, LeaseholdError
from leasehold.model import Command, Reply, Wakeup

type Land = Callable[[Sequence[Reply] | LeaseholdError], None]


class Launcher:
    """Batches to one server that is connected."""

    def __init__(
        self, server: Server, terms: Terms, deliver: Callable[[Sequence[Wakeup]], None]
    ) -> None:
        self._server = server
        self._terms = terms
        self._deliver = deliver
        self._tasks: set[asyncio.Task[None]] = set()

    def launch(self, commands: Sequence[Command], land: Land) -> Callable[[], None] | None:
        """Send a batch now; what gives it up, or None where there is no connection."""
        link = self._server.link
        if not isinstance(link, LoopLink) or not link.usable:
            return None
        landed = partial(self._landed, link, commands, land)
        link.launch(self._terms.request(commands), 1, landed)
        return link.close

    def _landed(
        self,
        link: LoopLink,
        commands: Sequence[Command],
        land: Land,
        found: list[Any] | Exception,
    ) -> None:
        if not isinstance(found, list):
            return land(broken(found, link.endpoint))
        answer = found[0]
        if isinstance(answer, ReplyError):
            return self._otherwise(commands, land)
        try:
            replies, wakeups = read_answer(answer, commands)
        except LeaseholdError as error:
            return land(error)
        if wakeups:
            self._deliver(wakeups)
        land(replies)

    def _otherwise(self, commands: Sequence[Command], land: Land) -> None:
        """The server did nothing and said why: the ordinary way knows what to do."""
        task = asyncio.get_running_loop().create_task(self._apply(commands, land))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _apply(self, commands: Sequence[Command], land: Land) -> None:
        try:
            replies, wakeups = await self._server.apply(commands)
        except LeaseholdError as error:
            land(error)
        except BaseException as error:
            land(BackendUnavailable(f"the store failed: {error!r}"))
            raise
        else:
            if wakeups:
                self._deliver(wakeups)
            land(replies)
