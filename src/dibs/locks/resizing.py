"""A lease that grows and shrinks: a reader that becomes the writer, a writer that lets readers in.

Each change is a command with a number of its own, and the store heeds the newest only. So a lease is for
writing exactly while the last number it gave out is that of a granted change to all units: whatever task
or thread asks for something else meanwhile, nobody believes in more than the store has given.

A change whose answer got lost may have been made. Then the store may have more taken than we believe in,
never less, and the keeper brings it back to one unit: see `_settle`.
"""

import logging
from math import inf
from typing import Any, Literal

from dibs.config import optional_seconds
from dibs.core.names import fingerprint
from dibs.core.timing import burial
from dibs.errors import AcquireTimeout, BackendUnavailable, Deadlock
from dibs.locks.deadlock import Lookout, first_due
from dibs.locks.handle import Handle
from dibs.locks.lease import LeaseBase
from dibs.locks.messages import contention, key_shown, not_busy, unexpected
from dibs.locks.requests import Ask, Grant, Terms, new_id
from dibs.model import (
    MANY,
    Acquire,
    Command,
    Gone,
    Granted,
    Lost,
    Queued,
    Refused,
    Release,
    Renew,
    Renewed,
    Reply,
    Resize,
)
from dibs.runtime.port import NO_CARE, Answer, Care, Runtime

log = logging.getLogger("dibs")

NEVER = -1

SOON = 0.001
"""The keeper sees to a change after so many seconds."""


class ResizableLease(LeaseBase):
    """A lease on one unit or on all of them."""

    __slots__ = ("_asked", "_number", "_outgrown", "_settling", "_written")

    def __init__(self, rt: Runtime, key: bytes, terms: Terms, grant: Grant, me: object) -> None:
        self._number = 0
        """Of the newest change that was asked for."""
        self._written = 0 if terms.units == MANY else NEVER
        """Of the change that gave it all units."""
        self._settling: Resize | None = None
        """A change that the keeper is to bring about."""
        self._outgrown = 0, 0.0
        """The token before the newest upgrade, and when that was answered."""
        self._asked: Command | None = None
        """What the keeper has asked the store for it last."""
        super().__init__(rt, key, terms, grant, me)

    @property
    def mode(self) -> Literal["read", "write"]:
        """What it is for at this moment; it says nothing of whether the lease is lost."""
        return "write" if self._written == self._number else "read"

    # -- changing -----------------------------------------------------------------------------------

    async def _upgrade(self, wait: Any) -> None:
        patience = optional_seconds(wait, "wait")
        self.ensure()
        if self.mode == "read":
            await Upgrading(self._rt, self).run(patience)
            self.ensure()

    async def _downgrade(self) -> None:
        self.ensure()
        if self.mode == "read":
            return
        change = self._change_to(1)  # from here on nobody believes that it may write
        try:
            reply = (await self._rt.call(change)).reply
            if not isinstance(reply, Granted):
                self._refuse(reply)
        except BackendUnavailable as error:  # or the key is busy
            told = "the store did not confirm the downgrade of %s; retrying in the background: %s"
            log.warning(told, key_shown(self.key), error)
            self._settle(change)
        except BaseException:
            self._settle(change)
            raise

    async def _grow(self) -> Refused | None:
        """Ask the store once for all units; None once they are ours."""
        change = self._change_to(MANY)
        try:
            reply = (await self._rt.call(change)).reply
        except BaseException:
            self._settle(self._change_to(1))
            raise
        if isinstance(reply, Granted):
            self._outgrown = self.token, self._rt.now()
            self.token = reply.token
            self._written = change.seq  # last: until here it is for reading
            return None
        if isinstance(reply, Refused):
            return reply
        self._refuse(reply)
        return None

    def _change_to(self, units: int) -> Resize:
        self._number = number = self._number + 1
        self._settling = None  # an older change is void with this one
        return Resize(self.key, self._id, units, number)

    def _refuse(self, reply: Any) -> None:
        """The answer was neither yes nor no. Raises what that means."""
        if not isinstance(reply, Lost):
            raise unexpected(reply, self.key)
        self._lose(reply.reason, self._told_by(reply))
        self.ensure()

    # -- what the keeper does for it ----------------------------------------------------------------

    def _settle(self, change: Resize) -> None:
        """Nobody knows what the store has: let the keeper see to it that it is this."""
        self._settling = change
        self._see_to_it(self._rt.now() + SOON)

    def _check(self, now: float) -> Care:
        care = super()._check(now)
        if self._settling is None or care is NO_CARE or self._renewing:
            return care
        self._renewing = True
        return Care(renew=True, again_at=self._deadline)

    def _renewal(self) -> Command:
        self._asked = self._settling or super()._renewal()
        return self._asked

    def _renewed(self, answer: Answer) -> None:
        asked = self._asked
        if not isinstance(asked, Resize) or not isinstance(answer.reply, Granted | Refused):
            super()._renewed(answer)
        elif self._end is None:
            self._renewing = False
            if self._settling is asked:
                self._settling = None
            now = self._rt.now()
            self._renew_at = max(self._renew_at, now + SOON)  # as if nothing had been asked
            self._watch_from(now, 0.0)
        self._see_to_it(self._rt.now() + SOON)

    def _follow(self, answer: Answer) -> bool:
        reply, (token, until) = answer.reply, self._outgrown
        if isinstance(reply, Granted) and reply.token == token and answer.sent < until:
            # its claim, which the store had answered before it granted the upgrade
            answer = Answer(Renewed(reply.ttl), answer.sent, answer.resent)
        return super()._follow(answer)

    def _not_renewed(self, error: Exception) -> None:
        super()._not_renewed(error)
        self._see_to_it(self._renew_at)

    def _see_to_it(self, when: float) -> None:
        if self._settling is not None and self._end is None:
            self._rt.keeper.watch(self, when, 0.0)

    # -- handing on ---------------------------------------------------------------------------------

    def _handle(self) -> Handle:
        terms = self._terms._replace(units=MANY if self.mode == "write" else 1)
        return super()._handle()._replace(terms=terms, seq=self._number)

    def _go_on_from(self, handle: Handle) -> None:
        if handle.terms.units == MANY:
            self._written = handle.seq
        self._number = handle.seq


FRONT = 1 << 30
"""The priority of whoever waits to upgrade: before everybody who waits to acquire."""

SOONEST, LATEST = 0.005, 0.1
"""How long to wait between two tries, at first and after a while, in seconds."""


class Upgrading:
    """One upgrade, from the first try to the last: a reader waits until it is the only one.

    The ledger lets a holder grow at once or not at all, so it asks again. Meanwhile it has a place at the
    front of the queue, for all units, which is never granted while its own lease stands. The place keeps
    newcomers out. Whoever finds another's ahead of its own gets `Deadlock`, since both read.
    """

    __slots__ = (
        "_doubtful",
        "_lease",
        "_limit",
        "_look_at",
        "_lookout",
        "_place",
        "_refused",
        "_rt",
        "_since",
        "_speak_at",
        "_until",
        "_wait",
    )

    def __init__(self, rt: Runtime, lease: ResizableLease) -> None:
        self._rt = rt
        self._lease = lease
        self._place = ""
        """The id that waits at the front of the queue."""
        self._doubtful = False
        """A copy of its Acquire may still be under way."""
        self._speak_at = self._look_at = inf
        self._lookout: Lookout | None = None
        self._refused: Refused | None = None
        self._limit: float | None = None

    async def run(self, wait: float | None) -> None:
        """Raises `AcquireTimeout`, `Deadlock`, `LeaseLost`, `BackendUnavailable`."""
        self._wait = wait
        self._until = inf if wait is None else self._rt.now() + wait
        if await self._try():
            return
        if self._rt.now() >= self._until:
            raise self._timeout()
        try:
            await self._take_place()
            await self._try_until_alone()
        except (AcquireTimeout, Deadlock):
            await self._leave_place()
            raise
        except BaseException:
            self._abandon_place()
            raise
        finally:
            if self._lookout is not None:
                self._lookout.end()
        await self._leave_place()

    async def _try_until_alone(self) -> None:
        pause = SOONEST
        self._since = since = self._rt.now()
        self._look_at = first_due(self._rt, self._ask, None, since)
        while not await self._try():
            left = self._until - self._rt.now()
            if left <= 0:
                raise self._timeout()
            if self._rt.now() >= self._speak_at:
                await self._speak_up()
            if self._rt.now() >= self._look_at:
                await self._look_out()
            quiet = max(self._speak_at - self._rt.now(), SOONEST)
            await self._rt.signal().wait(min(pause, left, quiet))
            self._lease.ensure()
            pause = min(2 * pause, LATEST)

    async def _try(self) -> bool:
        """Ask once; a store that is away is asked again, as long as there is time."""
        try:
            refused = await self._lease._grow()
        except BackendUnavailable as error:
            self._endure(error)
            return False
        self._refused, self._limit = refused, None
        return refused is None

    def _endure(self, error: BackendUnavailable) -> None:
        """An outage is raised on unless there is time left."""
        now = self._rt.now()
        if self._limit is None:
            self._limit = now + self._rt.connect_timeout if self._wait is None else self._until
        if now >= self._limit:
            raise error

    async def _look_out(self) -> None:
        """For a circle of those who wait for each other over other keys. Raises `Deadlock`."""
        if self._lookout is None:
            self._lookout = Lookout(self._rt, self._ask, None, self._since)
        self._look_at = await self._lookout.look(fingerprint(self._place), 0)

    @property
    def _ask(self) -> Ask:
        lease, terms = self._lease, self._lease._terms
        return Ask(lease.key, terms.owner, terms.ttl, MANY, MANY, FRONT, detects=terms.detects)

    # -- the place in the queue ---------------------------------------------------------------------

    async def _take_place(self) -> None:
        """Queue at the very front. A place that has ended, as this process was paused, is taken anew."""
        while isinstance(reply := await self._ask_for_place(), Gone):
            self._lease.ensure()  # it may have ended as well
        self._placed(reply)

    async def _ask_for_place(self) -> Reply:
        lease, terms = self._lease, self._lease._terms
        if self._doubtful:  # a late copy of the place before this one must find it buried
            self._abandon_place()
        self._place, self._doubtful = new_id(), False
        ask = Acquire(
            lease.key,
            self._place,
            terms.owner,
            terms.ttl,
            units=MANY,
            capacity=MANY,
            queue=True,
            patience=terms.ttl,
            priority=FRONT,
            note="waits to upgrade the lease that it reads under",
        )
        while True:
            try:
                answer = not_busy(await self._rt.call(ask), lease.key)
                self._doubtful = self._doubtful or answer.resent
                return answer.reply
            except BackendUnavailable as error:
                self._doubtful = True
                self._endure(error)
                await self._rt.signal().wait(LATEST)

    def _placed(self, reply: Reply) -> None:
        if isinstance(reply, Queued):
            self._speak_at = self._rt.now() + reply.recheck_in
            if reply.position:
                raise Deadlock(
                    f"{key_shown(self._lease.key)}: another reader waits to upgrade already, and each "
                    "would wait for the other to leave: release this lease, and acquire for writing",
                    key=self._lease.key,
                    holders=self._refused.holders if self._refused else (),
                    position=reply.position,
                )
        elif isinstance(reply, Refused):
            raise self._timeout()  # the queue is full
        elif not isinstance(
            reply, Granted
        ):  # granted: our lease has ended, as the next try will tell
            raise unexpected(reply, self._lease.key)

    async def _speak_up(self) -> None:
        """A place that is silent is passed over."""
        lease = self._lease
        try:
            reply = (await self._rt.call(Renew(lease.key, self._place, lease.ttl))).reply
        except BackendUnavailable:
            return
        if isinstance(reply, Queued):
            self._speak_at = self._rt.now() + reply.recheck_in
        elif not isinstance(reply, Granted):  # granted: as above
            await self._take_place()  # it went with its patience, during an outage or a pause

    async def _leave_place(self) -> None:
        bury = burial(self._rt.call_timeout) if self._doubtful else 0.0
        try:
            await self._rt.call(Release(self._lease.key, self._place, bury=bury))
        except BaseException as error:
            self._abandon_place()
            if not isinstance(error, BackendUnavailable):
                raise

    def _abandon_place(self) -> None:
        if self._place:
            self._rt.keeper.abandon(self._lease.key, self._place, burial(self._rt.call_timeout))

    def _timeout(self) -> AcquireTimeout:
        key, refused = self._lease.key, self._refused
        holders = refused.holders if refused else ()
        waited = f"; gave up upgrading after {self._wait:g} s" if self._wait else ""
        return AcquireTimeout(
            f"{contention(key, holders, None)}{waited}",
            key=key,
            holders=holders,
            retry_after=refused.recheck_in if refused else None,
        )
