"""A batch on its way without a task of its own: its landing is called as soon as the answer is read.

An event loop takes two turns less for it than for a coroutine that is awaited, and a lone task waits for
each of them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dibs.backends.port import Land
from dibs.backends.redis.link import ReplyError
from dibs.backends.redis.loop_link import LoopLink
from dibs.backends.redis.script import read_answer
from dibs.backends.redis.scripting import Terms
from dibs.backends.redis.server import Server
from dibs.backends.redis.trouble import broken
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command, Wakeup


class Launcher:
    """Batches to one server that is connected."""

    def __init__(
        self, server: Server, terms: Terms, deliver: Callable[[Sequence[Wakeup]], None]
    ) -> None:
        self._server = server
        self._terms = terms
        self._deliver = deliver

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
            return land(None)
        try:
            replies, wakeups = read_answer(answer, commands)
        except DibsError as error:
            return land(error)
        except Exception as error:  # noqa: BLE001  # else the callers would wait for their time-out
            return land(
                BackendUnavailable(f"{link.endpoint} answered what can't be read: {error!r}")
            )
        if wakeups:
            self._deliver(wakeups)
        land(replies)
