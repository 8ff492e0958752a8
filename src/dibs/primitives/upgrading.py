"""An upgrade: a reader waits until it is the only one, and becomes the writer.

The ledger lets a holder grow at once or not at all, so whoever waits asks again. Meanwhile it has a place
at the very front of the key's queue, for all units. That place is never granted while its own lease
stands. It does two things that a store can only do in one step:

* it keeps newcomers out, or readers that come and go would make an upgrade wait for ever;
* it is the turn to upgrade: no other place is ahead of the first that waits so, and whoever finds one ahead
  of its own knows that both would wait for each other, since both read. It gets `Deadlock` at once.

A queue's order is the store's own, the same for all processes and on every store, and a place whose owner
died goes with its patience. A lock of its own for the turn would be a second key, which a crash between
the two, or a store that keeps keys in several places, could leave half taken.
"""

from math import inf

from dibs.core.names import fingerprint
from dibs.core.timing import burial
from dibs.errors import AcquireTimeout, BackendUnavailable, Deadlock
from dibs.model import (
    MANY,
    Acquire,
    Gone,
    Granted,
    Queued,
    Refused,
    Release,
    Renew,
    Reply,
)
from dibs.primitives.ask import Ask
from dibs.primitives.ids import new_id
from dibs.primitives.lookout import Lookout, first_due
from dibs.primitives.refusals import unexpected
from dibs.primitives.resizing import ResizableLease
from dibs.primitives.telling import contention, key_shown
from dibs.runtime.port import Runtime

FRONT = 1 << 30
"""The priority of whoever waits to upgrade: before everybody who waits to acquire."""

SOONEST, LATEST = 0.005, 0.1
"""How long to wait between two tries, at first and after a while, in seconds."""


class Upgrading:
    """One upgrade, from the first try to the last."""

    __slots__ = (
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
        self._place = new_id()
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
                return (await self._rt.call(ask)).reply
            except BackendUnavailable as error:
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
        try:
            await self._rt.call(Release(self._lease.key, self._place))
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
