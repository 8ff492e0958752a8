"""A lease: its deadline, renewal, loss and release, and what its holder can do with it.

What the leases of a kind do differently is data: `HoldOptions`, and `LeaseRules` in them. Subclasses change
the units, call callbacks, or report an overrun.
"""

import logging
import warnings
from base64 import urlsafe_b64decode, urlsafe_b64encode
from json import dumps, loads
from math import inf
from typing import Any, Protocol, Self

from dibs.config import Duration, optional_seconds, safe_ttl, seconds
from dibs.core.timing import MIN_TTL, renew_after, tombstone_ttl, trusted
from dibs.errors import (
    BackendUnavailable,
    Corrupt,
    DibsError,
    IncompatibleVersion,
    LeaseLost,
    NotHeld,
)
from dibs.locks import hooks
from dibs.locks.messages import (
    FORGOTTEN,
    LOSSES,
    NEVER_WAS,
    LossReason,
    format_duration,
    format_key,
    loss_of,
    unexpected,
)
from dibs.locks.reentrant import Depth, check_single
from dibs.locks.requests import COMMON, Grant, HoldOptions
from dibs.model import (
    Command,
    Failed,
    Granted,
    Lost,
    Queued,
    Release,
    Released,
    Renew,
    Renewed,
    Unknown,
)
from dibs.process import generation
from dibs.runtime.port import EARLY, NO_CARE, CallResult, Care, Guard, Runtime, TimedReply

log: logging.Logger = logging.getLogger("dibs")

INBOX_AFTER = 1.0
"""Seconds after which a holder without an inbox gets one, with its first renewal.

Threads have none until their keeper listens. A short hold should not pay for that.
"""

type Block = tuple[object, Guard]
"""A `with` block that relies on a lease: the task or thread that entered it, and its guard."""


class EndSignal(Protocol):
    """Is set, once and in any thread, when a lease ends."""

    def set(self) -> None: ...


class LeaseBase:
    """A lease on both sides; made by the primitives only.

    The keeper calls what `runtime.port.Watched` has, in threads of its own. An interrupt can come at any
    point, so an end is one atomic step: see `_finish`.
    """

    __slots__ = (
        "__weakref__",
        "_alive",
        "_blocks",
        "_bucket",
        "_claim_by",
        "_deadline",
        "_depth",
        "_detail",
        "_doubtful",
        "_end",
        "_end_signals",
        "_generation",
        "_given_up",
        "_hold_until",
        "_id",
        "_is_readable",
        "_me",
        "_options",
        "_renew_at",
        "_renewing",
        "_retain_until",
        "_rt",
        "_rules",
        "_seen",
        "_seq",
        "_suspected_at",
        "_trouble",
        "_uncommitted_at",
        "key",
        "slots",
        "token",
    )

    def __init__(
        self, rt: Runtime, key: bytes, options: HoldOptions, grant: Grant, me: object
    ) -> None:
        self._bucket: Any = None
        self._end: str | None = "new"
        """Why it ended: a `LossReason`, or `released`, `detached` or `forgotten`; None while it is held."""
        self._rt = rt
        self._options = options
        self._rules = options.rules
        self.key: bytes = key
        """Kind and name, as `b"lock:order:42"`. It is bytes, as a name may be: print `lease.key.decode()`."""
        self.token: int
        """The fencing token. It rises with every grant of the key."""
        self.slots: tuple[int, ...]
        """The numbers of its units; empty if they have none."""
        (
            self._id,
            self.token,
            self.slots,
            since,
            self._deadline,
            claim_by,
            self._doubtful,
            self._uncommitted_at,
            self._seq,
        ) = grant
        self._claim_by = claim_by
        self._hold_until: float | None = None
        self._retain_until: float | None = None
        self._renewing = False
        self._suspected_at: float | None = None
        """When a notification said that it was revoked; None once the store has answered a later renewal."""
        self._given_up = False
        """It was lost, and the store was told that its holder has ended."""
        self._blocks: list[Block] = []
        """The `with` blocks that rely on it, in the order in which they were entered."""
        self._depth: Depth | None = None
        """How many times its holder has acquired it, if it is reentrant."""
        self._detail = ""
        self._trouble: str | None = None
        self._is_readable = True
        """The latest renewal did not find unreadable data in the store."""
        self._end_signals: list[EndSignal] | None = None
        self._seen: hooks.LeaseHook | None = None
        self._generation = generation.number
        self._alive = [True]
        """Emptied by whichever thread ends it first."""
        self._me = me
        if options.max_hold is not None:
            self._hold_until = since + options.max_hold
            self._deadline = min(self._deadline, self._hold_until)
        lead = renew_after(options.ttl)
        rules = self._rules
        if rules is not COMMON:
            lead = self._lead
            self._deadline = min(self._deadline, since + rules.trust_for)
            if rules.retain:
                self._retain_until = rt.now() + rules.retain
        renew_at = since + lead
        if claim_by is not None:  # soon, but no sooner: a short hold should not pay for it
            renew_at, lead = claim_by, round(claim_by - since, 3)
        if not rt.inbox:
            renew_at = min(renew_at, since + INBOX_AFTER)
        self._renew_at = renew_at
        self._end = None  # from here on `__del__` gives it up after any interrupt
        if options.exclusive:
            rt.holding.put(key, me, self)
        if options.auto_renew and renew_at <= self._deadline:
            rt.keeper.watch(self, renew_at, lead)
        else:
            self._schedule(since, lead)
        if hooks.observer is not None:
            self._seen = hooks.observer.holding(self, me, here=me is rt.me())

    # -- what its holder can ask ----------------------------------------------------------------------

    @property
    def owner(self) -> str:
        """The holder, for people: `host/pid/label`."""
        return self._options.owner

    @property
    def ttl(self) -> float:
        """How long the store keeps it without a renewal, in seconds."""
        return self._options.ttl

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

    @property
    def lost(self) -> bool:
        """Whether it ended before its holder gave it up; computed from the deadline at every call."""
        return self.reason is not None

    @property
    def reason(self) -> LossReason | None:
        """Why it was lost: `expired`, `revoked`, `max_hold`, `closed`, `resigned`; None unless it was."""
        if self._end in LOSSES:
            return self._end  # type: ignore[return-value]  # as the line above says
        if self._end is None:
            if generation.number != self._generation:
                return "closed"
            if self._rt.now() >= self._deadline:
                return self._deadline_reason()
        return None

    @property
    def trouble(self) -> str | None:
        """Why its latest renewal, or its release, failed; it is tried again. None while they get through."""
        return self._trouble

    def ensure(self, needs: Duration = 0) -> None:
        """Raise unless at least `needs` (seconds, or "2s") are left before the deadline.

        Call it right before each step that relies on the lease: no callback can tell a process in time
        that was paused. It asks no store, so it knows of a revocation by the next renewal at the latest.
        Raises `LeaseLost` if the lease is lost or too little is left, `NotHeld` if it was given up.
        """
        if self._end is not None and self._end not in LOSSES:
            raise NotHeld(f"the lease on {format_key(self.key)} was {self._end}", key=self.key)
        if self.lost:
            raise self._loss()
        needed = seconds(needs, "needs")
        if self.remaining < needed:
            raise LeaseLost(
                f"the lease on {format_key(self.key)} has {format_duration(self.remaining)} left, "
                f"and {format_duration(needed)} are needed: renew it first, or take a longer ttl",
                key=self.key,
            )

    def __repr__(self) -> str:
        state = self.reason or self._end or f"{format_duration(self.remaining)} left"
        return f"<Lease on {format_key(self.key)}, token {self.token}, {state}>"

    def _loss(self, reason: LossReason | None = None) -> LeaseLost:
        why = reason or self.reason or "expired"
        detail = self._detail or (self._trouble or "" if why == "expired" else "")
        return loss_of(
            self.key,
            self.token,
            why,
            detail,
            renews=self._options.auto_renew,
            is_readable=self._is_readable,
        )

    @property
    def _stands(self) -> bool:
        """Whether it is held: neither lost nor given up."""
        return self._end is None and bool(self._alive) and not self.lost

    async def _still_stands(self) -> bool:
        """Whether it is held; asks the store if its transaction may have been rolled back."""
        if self._stands and self._uncommitted_at is not None:
            try:
                await self._confirm()
            except DibsError:
                pass  # it is lost now, or its transaction is open
        return self._stands

    # -- handing it on --------------------------------------------------------------------------------

    def adopt(self) -> Self:
        """Make the calling task or thread its holder, and the one that a loss interrupts."""
        self.ensure()
        self._forget_holder()
        self._me = me = self._rt.me()
        if self._options.exclusive and self._end is None:
            self._rt.holding.put(self.key, me, self)
        if self._blocks:
            _, guard = self._blocks.pop()
            guard.leave(None)
            self._open_block()
        return self

    def _forget_holder(self) -> None:
        """Note that its task or thread no longer holds the key."""
        if self._options.exclusive:
            self._rt.holding.drop(self.key, self._me, self)

    def detach(self) -> str:
        """Stop renewing it here, and return a handle with which another process can attach it.

        The handle is a secret: it is enough to renew and release the lease. Nothing renews the lease
        meanwhile, so attach it within `remaining` seconds, and once: two who attach it hold the same
        lease, and the first to release it ends it for both. Raises `Reentrant` while its holder has
        acquired it more than once.
        """
        self.ensure()
        check_single(self, "detached")
        self._finish("detached")
        return self._handle()

    def _handle(self) -> str:
        return pack_handle(self, self._options)

    def __reduce__(self) -> Any:
        """Never works: two copies would not know of each other. Raises `TypeError`."""
        raise TypeError(
            "a lease can't be copied or sent to another process: send lease.detach(), and there "
            "client.attach(handle)"
        )

    # -- `with` blocks --------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Begin a block, once a transaction that it was acquired in has committed."""
        if self._uncommitted_at is not None:
            await self._confirm()
        self._enter()

    def _enter(self) -> None:
        """Begin a block. Raises `LeaseLost` if the lease is lost already."""
        if self._end is not None or self._rt.now() >= self._deadline:
            if (loss := self._settle_loss()) is not None:
                raise loss
            self.ensure()
        self._open_block()

    def _open_block(self) -> None:
        rt = self._rt
        guard = rt.guard()
        guard.enter()
        self._blocks.append((rt.me(), guard))
        if self._end in LOSSES:
            guard.fire()

    async def _leave(self, exc: BaseException | None) -> None:
        """The body has ended: release. Raise `LeaseLost` where a loss ended it."""
        await self._end_block(exc, self._exit_block(exc))

    async def _end_block(self, exc: BaseException | None, no_other_error: bool) -> None:
        if self._end is None and self._rt.now() < self._deadline:
            await self._release()
            loss = self._unseen_loss()
        else:
            loss = self._settle_loss()
        if loss is not None and not (self._rules.overruns and loss.reason == "max_hold"):
            raise_loss(loss, exc, no_other_error)

    def _exit_block(self, exc: BaseException | None) -> bool:
        """Stop interrupting the body; return False if an error other than our interruption ended it."""
        blocks = self._blocks
        if not blocks:
            return True
        block = blocks[-1]
        if len(blocks) > 1 and len({owner for owner, _ in blocks}) > 1:
            me = self._rt.me()
            block = next((each for each in reversed(blocks) if each[0] is me), block)
        if self._depth is not None:
            self._depth.restore(len(blocks))
        blocks.remove(block)
        return block[1].leave(exc)

    def _settle_loss(self) -> LeaseLost | None:
        """A block has ended: give up what is left of a lost lease; return the error, if it was lost."""
        reason = self.reason
        if reason is None:
            return None
        if self._finish(reason):  # before the timers have looked
            self._interrupt()
            self._set_end_signals()
        if self._depth is None or self._depth.leave():
            self._release_after_loss()
        return self._loss(reason)

    def _unseen_loss(self) -> LeaseLost | None:
        """The error if a release has found that the store had no such lease any more."""
        return self._loss() if self._end in LOSSES else None

    def _interrupt(self) -> None:
        """Interrupt each task in its innermost block. The loss passes on through those around it."""
        innermost = dict(self._blocks)
        for guard in innermost.values():
            guard.fire()

    @property
    def _is_orphaned(self) -> bool:
        """Nobody may be left to leave its blocks. Without a block it lives as long as its object."""
        blocks = self._blocks
        if not blocks or (self._depth is not None and len(blocks) < len(self._depth)):
            return False
        return all(guard.is_orphaned for _, guard in blocks)

    # -- renewal --------------------------------------------------------------------------------------

    async def _renew(self, ttl: Duration | None) -> None:
        self.ensure()
        wanted = self._options.ttl if ttl is None else safe_ttl(ttl)
        answer = await self._rt.call(Renew(self.key, self._id, wanted))
        self.ensure()  # past its deadline it stays lost, whatever the store says
        if ttl is not None and isinstance(answer.reply, Renewed | Granted):
            self._options = self._options._replace(ttl=wanted)
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
                f"the lease on {format_key(self.key)} can't be entered before the transaction that it was "
                f"acquired in has committed: put the `with` behind it ({error})",
                key=self.key,
            ) from error

    @property
    def _lead(self) -> float:
        """Seconds from one renewal to the next."""
        every = self._rules.renew_every
        return renew_after(self._options.ttl) if every is None else every

    @property
    def _wants_renewal(self) -> bool:
        """The keeper renews it, or has one thing to ask the store."""
        return (
            self._options.auto_renew
            or self._claim_by is not None
            or self._uncommitted_at is not None
            or self._suspected_at is not None
        )

    @property
    def _renew_by(self) -> float:
        """The time at which a renewal is too late; infinite if no other is wanted before its end."""
        return self._deadline if self._wants_renewal and self._renew_at <= self._deadline else inf

    def _check(self, now: float) -> Care:
        """Lose it if its time is over, else return what it needs."""
        stopped = not self._alive or (self._depth is not None and not len(self._depth))
        if self._end is not None or stopped:  # stopped: an interrupt came during its release
            return NO_CARE
        if now >= self._deadline:
            self._lose(self._deadline_reason())
            return NO_CARE
        if self._rt.is_over:
            self._lose("closed", "its event loop was closed under it")
            return NO_CARE
        if not self._wants_renewal or self._renewing:
            return Care(renew=False, again_at=self._deadline)
        early = EARLY * renew_after(self._options.ttl)
        if now < self._renew_at - early:
            return Care(renew=False, again_at=min(self._renew_at, self._deadline))
        if self._is_orphaned:
            log.warning(
                "%s is not renewed any more: the task or thread that entered its block has ended "
                "without leaving it",
                format_key(self.key),
            )
            self._renew_at = inf
            return Care(renew=False, again_at=self._deadline)
        self._renewing = True
        return Care(renew=True, again_at=self._deadline)

    def _renewal(self) -> Command:
        """The command that asks the store for more time, or only whether the lease stands."""
        ttl = self._options.ttl
        if self._suspected_at is not None and not self._options.auto_renew:
            ttl = max(self._deadline - self._rt.now(), MIN_TTL)
        return Renew(self.key, self._id, ttl, self._rt.inbox)

    def _renewed(self, answer: TimedReply) -> None:
        """The store has answered a renewal. After the end of the lease that changes nothing."""
        self._renewing = False
        if self._end is not None:
            return
        if self._rt.now() >= self._deadline:
            self._lose(self._deadline_reason())  # past its deadline it stays lost
        elif not self._follow(answer):
            self._not_renewed(DibsError(f"the store answered a renewal with {answer.reply!r}"))

    def _follow(self, answer: TimedReply) -> bool:
        """Extend or lose the lease, by the answer to a renewal; False if the answer is neither."""
        reply = answer.reply
        if isinstance(reply, Renewed) or (isinstance(reply, Granted) and self._is_ours(answer)):
            self._extend(answer.sent, reply.ttl)
        elif isinstance(reply, Lost):
            self._lose(reply.reason, self._detail_of(reply))
        elif isinstance(reply, Queued | Granted):  # the id waits there, or holds by another grant
            self._lose("expired", FORGOTTEN)
        else:
            return False
        return True

    def _is_ours(self, answer: TimedReply) -> bool:
        """Whether the grant in an answer is the one that we know."""
        return answer.reply.token == self.token  # type: ignore[union-attr]

    def _extend(self, sent: float, ttl: float) -> None:
        """The store keeps it for `ttl` from `sent` at least."""
        self._trouble, self._is_readable = None, True
        self._claim_by = None
        acquired_at = self._uncommitted_at  # read once, as the keeper may be here too
        if acquired_at is not None and sent > acquired_at:
            self._uncommitted_at = None
        deadline = max(self._deadline, sent + self._trusted(ttl))
        self._deadline = deadline if self._hold_until is None else min(deadline, self._hold_until)
        if self._suspected_at is not None and sent >= self._suspected_at:
            self._suspected_at = None
        lead = 0.0 if self._suspected_at is not None else self._lead
        self._renew_at = sent + lead
        self._schedule(self._rt.now(), lead)
        if self._seen is not None:
            self._seen.renewed()

    def _trusted(self, ttl: float) -> float:
        """Seconds for which its holder trusts a message that promised `ttl`."""
        return min(trusted(ttl), self._rules.trust_for)

    def _not_renewed(self, error: Exception) -> None:
        """A renewal's outcome is unknown: it is tried again until the deadline."""
        self._renewing = False
        if self._end is None:
            now = self._rt.now()
            self._trouble = str(error) or type(error).__name__
            self._is_readable = not isinstance(error, Corrupt | IncompatibleVersion)
            log.info("a renewal of %s failed, trying again: %s", format_key(self.key), error)
            ttl = self._options.ttl
            # while its transaction is open the question keeps others waiting, and tells nothing new
            pause = min(ttl / 20, 1.0) if self._uncommitted_at is None else ttl / 10
            self._renew_at = now + pause
            self._schedule(now, 0.0)

    def _suspect_revocation(self) -> bool:
        """A notification says that it was revoked: return whether to renew it now, to find out."""
        if self._end is not None:
            return False
        self._suspected_at = self._rt.now()
        if self._renewing:
            return False  # it is renewed again once that answer is there
        self._renewing = True
        return True

    def _hold_on(self, options: HoldOptions) -> None:
        """Hold it on these terms from now on; until now it was kept for an `AllOf`."""
        now = self._rt.now()
        self._options = options
        if options.max_hold is not None:
            self._hold_until = now + options.max_hold
            self._deadline = min(self._deadline, self._hold_until)
        if self._end is None:
            self._schedule(now, 0.0)

    def _schedule(self, now: float, lead: float) -> None:
        at = self._renew_at
        if not self._wants_renewal or at > self._deadline:
            at, lead = self._deadline, max(self._deadline - now, 0.0)
        self._rt.keeper.watch(self, at, lead)

    # -- loss -----------------------------------------------------------------------------------------

    def _deadline_reason(self) -> LossReason:
        return "max_hold" if self._hold_until == self._deadline else self._rules.deadline_is

    def _detail_of(self, reply: Lost) -> str:
        """Return the store's reason for a loss."""
        if reply.reason != "expired" or reply.detail:
            return reply.detail
        return FORGOTTEN if self._uncommitted_at is None else NEVER_WAS

    def _lose(self, reason: str, detail: str = "") -> None:
        """End it before its holder has released it, and report that."""
        self._detail = detail
        if not self._finish(reason) or generation.number != self._generation:
            return  # in a forked child there is nobody to report it to
        if reason == "closed":
            self._release_after_loss()  # after another loss the body may go on for a moment
        if not (self._rules.overruns and reason == "max_hold"):
            self._interrupt()
        self._set_end_signals()
        log.warning("%s", self._loss())  # last: a handler may block

    def _call_on_lost(self) -> None:
        try:
            assert self._options.on_lost is not None
            self._options.on_lost(self)
        except Exception:
            log.exception("on_lost of %s failed", format_key(self.key))

    async def _wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until it is lost; False at the timeout, or once it was given up."""
        signal = self._rt.signal()
        try:
            self._signal_end(signal)
            await signal.wait(timeout)
        finally:
            self._signal_no_more(signal)
        return self.lost

    def _signal_end(self, watcher: EndSignal) -> None:
        """Set `watcher` when it ends; also if it has ended already."""
        if self._end_signals is None:
            self._end_signals = []
        self._end_signals.append(watcher)
        if self._end is not None or self.lost:
            watcher.set()

    def _signal_no_more(self, watcher: EndSignal) -> None:
        if self._end_signals is not None and watcher in self._end_signals:
            self._end_signals.remove(watcher)

    def _set_end_signals(self) -> None:
        for signal in tuple(self._end_signals or ()):
            signal.set()

    # -- release --------------------------------------------------------------------------------------

    async def _release(self) -> bool:
        """Give it up; True if it was held until now. Never raises because the store is away."""
        inner_was_held = self._depth is not None and len(self._depth) > 1 and self._stands
        return await self._send_release() if self._begin_release() else inner_was_held

    async def _send_release(self) -> bool:
        """Tell the store of the end; return whether the lease was held until then."""
        try:
            answer = await self._rt.call(self._release_command())
        except BackendUnavailable as error:
            return self._finish_release(error)
        except BaseException:
            self._abandon()
            raise
        return self._finish_release(answer)

    def _begin_release(self) -> bool:
        """End it here; return whether the store has to be told, which is up to the caller."""
        if self._depth is not None and not self._depth.leave():
            return False  # its holder has acquired it more often
        if not self._finish("released"):
            self._release_after_loss()
            return False
        return generation.number == self._generation

    def _release_command(self) -> Release:
        until = self._retain_until
        retain = 0.0 if until is None else max(until - self._rt.now(), 0.0)
        return Release(self.key, self._id, retain, tombstone(self._rt, self._doubtful))

    def _finish_release(self, told: CallResult) -> bool:
        """The store has answered the Release, or has not; return whether the lease was held until then."""
        if isinstance(told, TimedReply):
            if not isinstance(told.reply, Failed):
                if isinstance(told.reply, Unknown) and not told.resent:
                    self._lost_unseen()
                return isinstance(told.reply, Released)
            self._trouble = told.reply.detail
            log.warning("%s could not be given up: %s", format_key(self.key), told.reply.detail)
        else:
            self._trouble = str(told)
            log.warning("%s will be given up in the background: %s", format_key(self.key), told)
        self._abandon()
        return False

    def _lost_unseen(self) -> None:
        """The store had no such lease when it was released: another one may have held it meanwhile."""
        if self._rt.now() >= self._deadline:
            return  # it can have expired on the way, after its holder had done
        self._end, self._detail, self._given_up = "expired", FORGOTTEN, True
        if self._options.on_lost is not None:
            self._rt.call_soon(self._call_on_lost)
        log.warning("%s", self._loss())

    def _finish(self, how: str) -> bool:
        """End it once, in whichever thread comes first; return whether this call did."""
        try:
            self._alive.pop()
        except IndexError:
            return False
        self._end = how
        here = generation.number == self._generation
        if how in LOSSES and here and self._options.on_lost is not None:
            self._rt.call_soon(self._call_on_lost)  # first: the program may end with the block
        self._rt.keeper.unwatch(self)
        self._forget_holder()
        if self._end_signals and how not in LOSSES:
            self._set_end_signals()
        if self._seen is not None and here:
            self._seen.ended(how)
        return True

    def _release_after_loss(self) -> None:
        """Give up a lost lease whose holder has ended or must, before it expires."""
        if not self._given_up and self._end in LOSSES and generation.number == self._generation:
            self._given_up = True
            self._abandon()

    def _abandon(self) -> None:
        """Have the keeper give it up in the background."""
        give_up(self._rt, self.key, self._id, self._doubtful, self._retain_until)

    def _discard(self) -> None:
        """Give it up in silence after an interrupt or an error, unless that was done."""
        if self._depth is not None and not self._depth.leave():
            return
        if self._generation == generation.number and self._finish("forgotten"):
            self._abandon()
        else:
            self._release_after_loss()  # a late renewal may prolong it at the store

    def __del__(self) -> None:
        try:
            if self._end is not None or self._generation != generation.number:
                return
        except AttributeError:
            return  # its construction was interrupted
        if self._finish("forgotten"):
            self._abandon()
            if self._uncommitted_at is not None:
                return  # after a transaction that failed there is nothing to release
            told = (
                f"a lease on {format_key(self.key)} was dropped without release(): "
                "it is given up now; use `with`, or keep the lease and call release()"
            )
            log.warning("%s", told)  # Python hides a ResourceWarning unless it is asked for
            warnings.warn(told, ResourceWarning, stacklevel=2, source=self)


def tombstone(rt: Runtime, doubtful: bool) -> float:
    """Seconds for which to remember a released id: 0 if no copy of its Acquire can arrive."""
    return tombstone_ttl(rt.call_timeout) if doubtful else 0.0


def give_up(
    rt: Runtime, key: bytes, lease_id: str, doubtful: bool, retain_until: float | None = None
) -> None:
    """Have the keeper give up whatever an id has, in the background."""
    rt.keeper.abandon(key, lease_id, tombstone(rt, doubtful), retain_until)


def raise_loss(loss: LeaseLost, exc: BaseException | None, no_other_error: bool) -> None:
    """Raise a loss that ended a body; add it as a note to anything else that ended the body."""
    if no_other_error:
        raise loss from exc
    if exc is not None and not isinstance(exc, LeaseLost):
        exc.add_note(str(loss))


# -- handles ------------------------------------------------------------------------------------------

FORMAT = "lease1"

HANDED_ON = ("ttl", "owner", "units", "exclusive", "auto_renew", "max_hold")
"""The terms that go along with a lease."""


def pack_handle(lease: LeaseBase, options: HoldOptions) -> str:
    """Make a text of a detached lease, as secret as its id."""
    fields: dict[str, object] = {name: getattr(options, name) for name in HANDED_ON}
    fields["key"] = urlsafe_b64encode(lease.key).decode()
    fields["grant"] = lease._id, lease.token, lease.slots, lease._doubtful, lease._seq
    return f"{FORMAT}.{urlsafe_b64encode(dumps(fields).encode()).decode()}"


def unpack_handle(text: str) -> tuple[bytes, HoldOptions, Grant]:
    """Return the key, the terms, and the grant without its times. Raises `ValueError` for anything else."""
    try:
        version, _, packed = text.partition(".")
        if version != FORMAT:
            raise ValueError(f"its format is {version!r}, and this release reads {FORMAT!r}")
        fields = loads(urlsafe_b64decode(packed))
        options = HoldOptions(**{name: fields[name] for name in HANDED_ON})
        ttl, max_hold = safe_ttl(options.ttl), optional_seconds(options.max_hold, "max_hold")
        lease_id, token, slots, doubtful, seq = fields["grant"]
        grant = Grant(str(lease_id), int(token), tuple(slots), 0.0, 0.0, None, doubtful, seq=seq)
        return urlsafe_b64decode(fields["key"]), options._replace(ttl=ttl, max_hold=max_hold), grant
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no handle of a detached lease: {error}") from error
