"""One server that holds everything: alone, or the master that the Sentinels name."""

from collections.abc import Callable, Sequence
from typing import Any

from dibs.errors import DibsError
from dibs.model import Command, Reply, Wakeup
from dibs.stores.redis import greeting, scanning, sentinel
from dibs.stores.redis.ledger import Outcome, Terms, evaluate
from dibs.stores.redis.link import Dial, HiredisError, Link, ReplyError
from dibs.stores.redis.parts import failed
from dibs.stores.redis.settings import Endpoint, Settings
from dibs.stores.redis.trouble import broken, code_of, explain

_ELSEWHERE = {"READONLY", "LOADING", "MASTERDOWN"}
"""With these answers another server may be the one to ask."""


class Server:
    """All batches over one connection, which is made anew after every failure."""

    def __init__(self, settings: Settings, dial: Dial, terms: Terms) -> None:
        self._settings = settings
        self._dial = dial
        self._terms = terms
        self._link: Link | None = None
        self.arrived_at: Callable[[Endpoint], None] = _nobody_cares
        """Told where each new connection leads: after a failover, that is somewhere else."""

    @property
    def link(self) -> Link | None:
        """The connection that batches take, if there is one."""
        return self._link

    async def open(self) -> None:
        """Connect, unless that is done."""
        await self._connected()

    async def _connected(self) -> Link:
        link = self._link
        if link is None or not link.usable:
            link = await self.dial()
            old = self._link
            if old is not None and old.usable:
                link.close()  # somebody else was faster, and uses it already
                return old
            if old is not None:
                old.close()
            self._link = link
            self.arrived_at(link.endpoint)
        return link

    async def dial(self) -> Link:
        """Another connection to the server."""
        settings = self._settings
        if settings.topology == "sentinel":
            return await sentinel.connect(settings, self._dial)
        return await greeting.connect(settings, self._dial, settings.endpoints[0])

    # -- batches ------------------------------------------------------------------------------------

    async def apply(self, commands: Sequence[Command]) -> Outcome:
        """Apply a batch in one round trip."""
        link = self._link
        if link is None or not link.usable:
            link = await self._connected()
        answer = await self._evaluate(link, commands)
        if isinstance(answer, ReplyError):
            return await self._refused(link, commands, answer)
        return self._terms.read(answer, commands)

    async def _evaluate(self, link: Link, commands: Sequence[Command]) -> Any:
        try:
            return await evaluate(link, self._terms, commands)
        except BaseException as error:
            link.close()
            if isinstance(error, OSError | HiredisError):
                raise broken(error, link.endpoint) from error
            raise

    async def _refused(
        self, link: Link, commands: Sequence[Command], answer: ReplyError
    ) -> Outcome:
        """The server did nothing, and says why."""
        code = code_of(answer)
        if code in _ELSEWHERE:
            link.close()
        if code == "NOPERM" and len({command.key for command in commands}) > 1:
            return await self._one_by_one(link, commands)
        raise explain(answer, link.endpoint)

    async def _one_by_one(self, link: Link, commands: Sequence[Command]) -> Outcome:
        """This user may not touch some of the keys: that costs the others nothing."""
        replies: list[Reply] = []
        wakeups: list[Wakeup] = []
        refusals: list[DibsError] = []
        for command in commands:
            answer = await self._evaluate(link, [command])
            if isinstance(answer, ReplyError):
                refusals.append(explain(answer, link.endpoint))
                reply: Reply = failed(refusals[-1])
            else:
                (reply,), more = self._terms.read(answer, [command])
                wakeups += more
            replies.append(reply)
        if len(refusals) == len(commands):
            raise refusals[0]
        return replies, wakeups

    # -- the rest -----------------------------------------------------------------------------------

    async def names(self) -> set[bytes]:
        """The names of all keys of ours, over a connection for this only."""
        link = await self.dial()
        try:
            return await scanning.names_on(link)
        finally:
            link.close()

    def close(self) -> None:
        """Hang up."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def after_fork(self) -> None:
        """In the child: let go without a word."""
        link, self._link = self._link, None
        if link is not None:
            link.close_in_child()


def _nobody_cares(endpoint: Endpoint) -> None:
    """Where nobody listens, nobody has to move."""
