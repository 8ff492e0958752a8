"""One id's conversation with the store: asking until there is an answer, and giving the id up."""

from math import inf

from dibs.core.timing import burial
from dibs.errors import BackendUnavailable
from dibs.model import Acquire, Failed, Release
from dibs.primitives.ask import Ask
from dibs.primitives.ids import new_id
from dibs.primitives.messages import ASIDE, not_busy, unexpected
from dibs.runtime.port import Answer, Runtime

BRIEFLY = 1.0
"""Seconds that a store has for an answer also where less is left to wait."""


class Asking:
    """What `Acquiring` says to the store, and what it must remember of it."""

    __slots__ = ("_ask", "_doubtful", "_id", "_in_flight", "_inbox", "_over", "_rt")

    def __init__(self, rt: Runtime, ask: Ask, lease_id: str | None = None) -> None:
        self._rt = rt
        self._ask = ask
        self._id = lease_id or new_id()
        self._doubtful = False
        """A copy of a command may still be under way."""
        self._in_flight = False
        self._inbox = ""
        """Where the store was told to push."""
        self._over = True
        """There is nothing to be given up."""

    async def _send(self, *, queue: bool, until: float, since: float | None = None) -> Answer:
        """Ask `until` then, or for `connect_timeout` from `since` (unset: from now) if that has no end."""
        rt = self._rt
        limit, pause = until, 0.02
        if until == inf:
            limit = (rt.now() if since is None else since) + rt.connect_timeout
        while True:
            patience = max(limit - rt.now(), BRIEFLY)
            try:
                if not rt.is_ready:
                    await rt.ready(patience)
                self._in_flight, self._over = True, False
                answer = not_busy(await rt.call(self._command(queue), patience), self._ask.key)
                self._in_flight = False
            except BackendUnavailable:
                self._doubtful = True
                left = limit - rt.now()
                if left <= 0:
                    raise
                await rt.signal().wait(min(pause, left))
                pause = min(2 * pause, 1.0)
                continue
            self._doubtful = self._doubtful or answer.resent
            if isinstance(answer.reply, Failed):
                raise unexpected(answer.reply, self._ask.key)
            return answer

    def _command(self, queue: bool) -> Acquire:
        ask = self._ask
        self._inbox = self._rt.inbox
        return Acquire(
            ask.key,
            self._id,
            ask.owner,
            ask.ttl,
            ask.units,
            ask.capacity,
            queue,
            max(ask.ttl, 30.0),
            ask.priority,
            ask.note,
            floor=ask.floor,
            lock_delay=ask.lock_delay,
            inbox=self._inbox,
            address=ask.address,
            trace=ask.trace,
        )

    async def _leave_queue(self) -> None:
        """At once, so that nothing is granted to a place that nobody wants."""
        await self._rt.call(Release(self._ask.key, self._id, bury=self._burial()), ASIDE)
        self._over = True

    def _burial(self) -> float:
        """A late copy of our Acquire must find the id buried; without one there is nothing to bury."""
        if self._doubtful or self._in_flight:
            return burial(self._rt.call_timeout)
        return 0.0
