"""One server that holds everything: alone, or the master that the Sentinels name."""

from collections.abc import Callable, Sequence
from typing import Any

from dibs.errors import BackendUnavailable, DibsError, Forbidden
from dibs.model import Command, Failed, Notification, Reply
from dibs.stores.redis import scanning
from dibs.stores.redis.connection import (
    Dial,
    HiredisError,
    Link,
    ReplyError,
    ask_sentinel,
    connect,
    pack,
)
from dibs.stores.redis.errors import broken, code_of, explain
from dibs.stores.redis.ledger import CallContext, Outcome, evaluate
from dibs.stores.redis.url import Endpoint, Settings

_ELSEWHERE = {"READONLY", "LOADING", "MASTERDOWN"}
"""With these answers another server may be the one to ask."""


class Server:
    """All batches over one connection, which is made anew after every failure."""

    def __init__(self, settings: Settings, dial: Dial, context: CallContext) -> None:
        self._settings = settings
        self._dial = dial
        self._context = context
        self.link: Link | None = None
        """The connection that batches take, if there is one."""
        self.arrived_at: Callable[[Endpoint], None] | None = None
        """Called with where each new connection leads: after a failover, that is somewhere else."""

    async def open(self) -> Link:
        """Connect, unless that is done."""
        link = self.link
        if link is None or not link.usable:
            link = await self.dial()
            old = self.link
            if old is not None and old.usable:
                link.close()  # another task was faster, and uses it already
                return old
            if old is not None:
                old.close()
            self.link = link
            if self.arrived_at is not None:
                self.arrived_at(link.endpoint)
        return link

    async def dial(self) -> Link:
        """Another connection to the server."""
        settings = self._settings
        if settings.topology == "sentinel":
            return await connect_to_master(settings, self._dial)
        return await connect(settings, self._dial, settings.endpoints[0])

    # -- batches ------------------------------------------------------------------------------------

    async def apply(self, commands: Sequence[Command]) -> Outcome:
        """Apply a batch in one round trip."""
        link = await self.open()
        answer = await self._evaluate(link, commands)
        if not isinstance(answer, ReplyError):
            return self._context.read(answer, commands)
        code = code_of(answer)
        if code in _ELSEWHERE:
            link.close()
        if code == "NOPERM" and len({command.key for command in commands}) > 1:
            return await self._one_by_one(link, commands)
        raise explain(answer, link.endpoint)

    async def _evaluate(self, link: Link, commands: Sequence[Command]) -> Any:
        try:
            return await evaluate(link, self._context, commands)
        except BaseException as error:
            link.close()
            if isinstance(error, OSError | HiredisError):
                raise broken(error, link.endpoint) from error
            raise

    async def _one_by_one(self, link: Link, commands: Sequence[Command]) -> Outcome:
        """This user may not touch some of the keys: that costs the others nothing."""
        replies: list[Reply] = []
        notifications: list[Notification] = []
        refusals: list[DibsError] = []
        for command in commands:
            answer = await self._evaluate(link, [command])
            if isinstance(answer, ReplyError):
                refusals.append(explain(answer, link.endpoint))
                replies.append(failed(refusals[-1]))
            else:
                found, more = self._context.read(answer, [command])
                replies += found
                notifications += more
        if len(refusals) == len(commands):
            raise refusals[0]
        return replies, notifications

    # -- the rest -----------------------------------------------------------------------------------

    async def names(self) -> set[bytes]:
        """The names of all keys of ours."""
        return await scanning.names_on(await self.dial())

    def close(self) -> None:
        """Hang up."""
        link, self.link = self.link, None
        if link is not None:
            link.close()

    def after_fork(self) -> None:
        """In the child: let go without a word."""
        link, self.link = self.link, None
        if link is not None:
            link.close_in_child()


def failed(error: DibsError) -> Failed:
    """The reply to one command that failed, where others of its batch did not."""
    return Failed("forbidden" if isinstance(error, Forbidden) else "away", str(error))


# ---- Sentinel -------------------------------------------------------------------------------------


async def connect_to_master(settings: Settings, dial: Dial) -> Link:
    """Ask the Sentinels anew. Raises `BackendUnavailable` if none of them leads to a master."""
    tried: list[DibsError] = []
    for each in settings.endpoints:
        try:
            return await _connect_by(settings, dial, each)
        except (BackendUnavailable, Forbidden) as error:
            tried.append(error)
    if all(isinstance(error, Forbidden) for error in tried):
        raise tried[0]
    told = "; ".join(str(error) for error in tried)
    raise BackendUnavailable(f"no Sentinel leads to the master {settings.service!r}: {told}")


async def _connect_by(settings: Settings, dial: Dial, sentinel: Endpoint) -> Link:
    question = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", settings.service)
    found = await ask_sentinel(settings, dial, sentinel, question)
    if not found:
        raise BackendUnavailable(f"the Sentinel at {sentinel} knows no {settings.service!r}")
    master = Endpoint(found[0].decode(), int(found[1]))
    link = await connect(settings, dial, master)
    try:
        role = (await link.ask(pack((b"ROLE",))))[0]
    except BaseException as error:
        link.close()
        if isinstance(error, OSError):
            raise broken(error, master) from error
        raise
    if isinstance(role, list) and role[0] != b"master":  # an ACL may refuse to tell: then believe
        link.close()
        raise BackendUnavailable(
            f"{master} is no master any more, and the Sentinel at {sentinel} does not know it yet"
        )
    return link
