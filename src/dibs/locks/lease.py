"""A lease in its holder's hands: asked about, renewed, handed on, entered and left."""

import logging
from typing import Any, Self

from dibs.config import Duration, safe_ttl, seconds
from dibs.errors import BackendUnavailable, DibsError, LeaseLost, NotHeld
from dibs.locks.handle import Handle, pack
from dibs.locks.kept import KeptLease
from dibs.locks.messages import LOSSES, key_shown, span, unexpected
from dibs.model import Failed, Granted, Released, Renew, Renewed
from dibs.process import generation
from dibs.runtime.port import Answer, Signal, Told

log = logging.getLogger("dibs")


class LeaseBase(KeptLease):
    """What leases of both worlds share; made by the primitives only."""

    __slots__ = ()

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def owner(self) -> str:
        """Who holds it, for people: `host/pid/label`."""
        return self._terms.owner

    @property
    def ttl(self) -> float:
        """How long the store keeps it without a renewal, in seconds."""
        return self._terms.ttl

    @property
    def slot(self) -> int:
        """The number of its one unit. Raises `ValueError` for a lease on more, or on unnumbered ones."""
        if len(self.slots) != 1:
            raise ValueError(f"this lease is on the slots {self.slots}: use lease.slots")
        return self.slots[0]

    @property
    def remaining(self) -> float:
        """The seconds until its deadline, after which it can't be relied on; 0 once it has ended."""
        if self._end is not None or generation.number != self._generation:
            return 0.0
        return max(self._deadline - self._rt.now(), 0.0)

    def ensure(self, needs: Duration = 0) -> None:
        """Raise unless at least `needs` (seconds, or "2s") are left before the deadline.

        To be called right before each step that relies on the lease: no callback can tell a process
        that was paused in time. Raises `LeaseLost` if the lease is lost or too little is left, `NotHeld`
        if it was given up.
        """
        if self._end is not None and self._end not in LOSSES:
            raise NotHeld(f"the lease on {key_shown(self.key)} was {self._end}", key=self.key)
        if self.lost:
            raise self._loss()
        needed = seconds(needs, "needs")
        if self.remaining < needed:
            raise LeaseLost(
                f"the lease on {key_shown(self.key)} has {span(self.remaining)} left, "
                f"and {span(needed)} are needed: renew it first, or take a longer ttl",
                key=self.key,
            )

    def adopt(self) -> Self:
        """Make the calling task or thread the one that holds it, and that a loss would interrupt."""
        self.ensure()
        self._belong_to(self._rt.me())
        if self._guard is not None:
            self._guard.leave(None)
            guard = self._guard = self._rt.guard()
            guard.enter()
            if self._end in LOSSES:
                guard.fire()
        return self

    def _belong_to(self, me: object) -> None:
        """From now on it is that task or thread that holds it."""
        self._let_go()
        self._me = me
        if self._terms.exclusive and self._end is None:
            self._rt.holding.put(self.key, me, self)

    def detach(self) -> str:
        """Stop looking after it here, and return a handle with which another process can attach it.

        The handle is a secret: whoever has it can renew and release the lease. Nothing renews it
        meanwhile, so it must be attached within `remaining` seconds, and once: two who attach it hold
        the same lease, and the first to release it ends it for both.
        """
        self.ensure()
        self._finish("detached")
        return pack(self._handle())

    def _handle(self) -> Handle:
        """What whoever goes on with it has to know."""
        return Handle(self.key, self._id, self.token, self.slots, self._terms, self._doubtful)

    def _go_on_from(self, handle: Handle) -> None:
        """It was detached elsewhere, and attached here."""

    def __reduce__(self) -> Any:
        """Never works: two copies would not know of each other. Raises `TypeError`."""
        raise TypeError(
            "a lease can't be copied or sent to another process: send lease.detach(), and there "
            "client.attach(handle)"
        )

    def __repr__(self) -> str:
        state = self.reason or self._end or f"{span(self.remaining)} left"
        return f"<Lease on {key_shown(self.key)}, token {self.token}, {state}>"

    # -- for both worlds ----------------------------------------------------------------------------

    async def _renew(self, ttl: Duration | None) -> None:
        self.ensure()
        wanted = self._terms.ttl if ttl is None else safe_ttl(ttl)
        answer = await self._rt.call(Renew(self.key, self._id, wanted))
        self.ensure()  # past its deadline it stays lost, whatever the store says
        if ttl is not None and isinstance(answer.reply, Renewed | Granted):
            self._terms = self._terms._replace(ttl=wanted)
        if not self._follow(answer):
            raise unexpected(answer.reply, self.key)
        self.ensure()

    async def _confirm(self) -> None:
        """Ask the store whether the transaction that it was acquired in has committed.

        Raises `LeaseLost` if it was rolled back, and `NotHeld` while it is open.
        """
        try:
            await self._renew(None)
        except BackendUnavailable as error:
            raise NotHeld(
                f"the lease on {key_shown(self.key)} can't be entered before the transaction that it was "
                f"acquired in has committed: put the `with` behind it ({error})",
                key=self.key,
            ) from error

    async def _still_stands(self) -> bool:
        """Whether it is held, by the store's word where a transaction may have been rolled back."""
        if self._stands and self._uncommitted_at is not None:
            try:
                await self._confirm()
            except DibsError:
                pass  # it is lost now, or its transaction is open
        return self._stands

    async def _release(self) -> bool:
        """Give it up; True if it was held until now. Never raises because the store is away."""
        if self._part() is None:
            return False
        try:
            answer = await self._rt.call(self._farewell())
        except BackendUnavailable as error:
            return self._parted(error)
        except BaseException:
            self._abandon()
            raise
        return self._parted(answer)

    def _part(self) -> "LeaseBase | None":
        """It is given up here; the lease that the store has to be told of, if one has ended by that."""
        if not self._finish("released"):
            self._hand_back()
            return None
        return self if generation.number == self._generation else None

    def _parted(self, told: Told) -> bool:
        """What the store said to the farewell; whether it was held until then."""
        if isinstance(told, Answer):
            if not isinstance(told.reply, Failed):
                return isinstance(told.reply, Released)
            log.warning("%s could not be given up: %s", key_shown(self.key), told.reply.detail)
        else:
            log.warning("%s will be given up in the background: %s", key_shown(self.key), told)
        self._abandon()
        return False

    async def _wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until it is lost; False at the timeout, or once it was given up."""
        signal = self._rt.signal()
        try:
            self._watch(signal)
            await signal.wait(timeout)
        finally:
            self._unwatch(signal)
        return self.lost

    def _watch(self, watcher: Signal) -> None:
        """Set `watcher` when it ends; also if that has happened already."""
        if self._watchers is None:
            self._watchers = []
        self._watchers.append(watcher)
        if self._end is not None or self.lost:
            watcher.set()

    def _unwatch(self, watcher: Signal) -> None:
        if self._watchers is not None and watcher in self._watchers:
            self._watchers.remove(watcher)

    async def _begin(self) -> None:
        """The body begins, once a transaction that it was acquired in has committed."""
        if self._uncommitted_at is not None:
            await self._confirm()
        self._enter()

    def _enter(self) -> None:
        """The body begins. Raises `LeaseLost` if the lease is lost already."""
        if self._end is not None or self._rt.now() >= self._deadline:
            if (loss := self._conclude()) is not None:
                raise loss
            self.ensure()
        guard = self._guard = self._rt.guard()
        guard.enter()
        if self._end in LOSSES:
            guard.fire()

    async def _leave(self, exc: BaseException | None) -> None:
        """The body has ended: release, and turn a loss into `LeaseLost` where nothing else is hidden."""
        ours = self._disarm(exc)
        if self._end is None and self._rt.now() < self._deadline:
            await self._release()
        elif (loss := self._conclude()) is not None:
            tell_loss(loss, exc, ours)

    def _disarm(self, exc: BaseException | None) -> bool:
        """Nothing interrupts the body any more; tell whether nothing but a loss has ended it."""
        guard, self._guard = self._guard, None
        return guard is None or guard.leave(exc)

    def _conclude(self) -> LeaseLost | None:
        """It has ended before its body did: clean up, and tell how it was lost, if it was."""
        reason = self.reason
        if reason is None:
            return None
        self._finish(reason)
        self._hand_back()
        return self._loss(reason)


def tell_loss(loss: LeaseLost, exc: BaseException | None, ours: bool) -> None:
    """Raise it where a body ended by it; what else the body ended with passes, with a note."""
    if ours:
        raise loss from exc
    if exc is not None and not isinstance(exc, LeaseLost):
        exc.add_note(str(loss))
