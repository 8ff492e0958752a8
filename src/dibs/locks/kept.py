"""A lease as its keeper sees it: what it needs, when it is lost, and how it ends once and for all."""

import logging
import warnings
from math import inf
from typing import TYPE_CHECKING, Any

from dibs.core.timing import MIN_TTL, burial, renew_after, trusted
from dibs.errors import DibsError, LeaseLost
from dibs.locks import hooks
from dibs.locks.messages import FORGOTTEN, LOSSES, NEVER_WAS, LossReason, key_shown, loss_of
from dibs.locks.requests import Grant, Terms
from dibs.model import Command, Granted, Lost, Queued, Release, Renew, Renewed
from dibs.process import generation
from dibs.runtime.port import EARLY, NO_CARE, Answer, Care, Guard, Runtime, Signal

if TYPE_CHECKING:
    from dibs.locks.hooks import Witness

log = logging.getLogger("dibs")

HEARD_AFTER = 1.0
"""A holder whose runtime has no inbox yet gets one after so many seconds, with its first renewal.

Threads have none until their keeper listens, and a hold that is short should not pay for one.
"""


class KeptLease:
    """The part of a lease that has no word for its holder but `lost` and `reason`."""

    __slots__ = (
        "__weakref__",
        "_alive",
        "_bucket",
        "_claim_by",
        "_deadline",
        "_detail",
        "_doubted",
        "_doubtful",
        "_end",
        "_generation",
        "_guard",
        "_handed_back",
        "_hold_until",
        "_id",
        "_me",
        "_renew_at",
        "_renewing",
        "_rt",
        "_seen",
        "_terms",
        "_trouble",
        "_uncommitted_at",
        "_watchers",
        "key",
        "slots",
        "token",
    )

    def __init__(self, rt: Runtime, key: bytes, terms: Terms, grant: Grant, me: object) -> None:
        self._bucket: Any = None
        self._end: str | None = "unborn"
        self._rt = rt
        self._terms = terms
        self.key = key
        (
            self._id,
            self.token,
            self.slots,
            since,
            self._deadline,
            claim_by,
            self._doubtful,
            self._uncommitted_at,
        ) = grant
        self._claim_by = claim_by
        self._hold_until: float | None = None
        self._renewing = False
        self._doubted: float | None = None
        """Since when the store must be asked whether it stands."""
        self._handed_back = False
        self._guard: Guard | None = None
        self._detail = ""
        self._trouble: str | None = None
        self._watchers: list[Signal] | None = None
        self._seen: Witness | None = None
        self._generation = generation.number
        self._alive = [True]
        self._me = me
        if terms.max_hold is not None:
            self._hold_until = since + terms.max_hold
            self._deadline = min(self._deadline, self._hold_until)
        lead = renew_after(terms.ttl)
        renew_at = since + lead
        if claim_by is not None:  # soon, but no sooner: short holds don't pay for it
            renew_at, lead = claim_by, round(claim_by - since, 3)
        if not rt.inbox:
            renew_at = min(renew_at, since + HEARD_AFTER)
        self._renew_at = renew_at
        self._end = None  # from here on, whatever interrupts us, `__del__` gives it up
        if terms.exclusive:
            rt.holding.put(key, me, self)
        if terms.auto_renew and renew_at <= self._deadline:
            rt.keeper.watch(self, renew_at, lead)
        else:
            self._watch_from(since, lead)
        if hooks.observer is not None:
            self._seen = hooks.observer.holding(self, me, here=me is rt.me())

    @property
    def lost(self) -> bool:
        """It ended before its holder gave it up; computed from the deadline at every call."""
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
                return self._why_over()
        return None

    @property
    def trouble(self) -> str | None:
        """Why its latest renewal failed, which is tried again; None while renewals get through."""
        return self._trouble

    @property
    def _stands(self) -> bool:
        """It is held, neither lost nor given up."""
        return self._end is None and bool(self._alive) and not self.lost

    async def _still_stands(self) -> bool:
        """The same, after asking whoever knows better."""
        return self._stands

    @property
    def _wants_renewal(self) -> bool:
        """The keeper renews it, or asks once whether it stands."""
        asked_once = self._claim_by is not None or self._uncommitted_at is not None
        return self._terms.auto_renew or asked_once or self._doubted is not None

    @property
    def _is_orphaned(self) -> bool:
        """A block holds it that nobody may be left to leave. Without a block it lives as its object does."""
        return self._guard is not None and self._guard.is_orphaned

    # -- what the keeper asks -----------------------------------------------------------------------

    def _check(self, now: float) -> Care:
        """Lose it if its time is over, else tell what it needs."""
        if self._end is not None or not self._alive:  # not alive: a Ctrl-C stopped its release
            return NO_CARE
        if now >= self._deadline:
            self._lose(self._why_over())
            return NO_CARE
        if self._rt.is_over:
            self._lose("closed", "its event loop was closed under it")
            return NO_CARE
        if not self._wants_renewal:
            return Care(renew=False, again_at=self._deadline)
        early = EARLY * renew_after(self._terms.ttl)
        due = now >= self._renew_at - early and not self._renewing
        if due and self._is_orphaned:
            log.warning(
                "%s is not renewed any more: the task or thread that entered its block has ended "
                "without leaving it",
                key_shown(self.key),
            )
            self._renew_at = inf
        elif due:
            self._renewing = True
            return Care(renew=True, again_at=self._deadline)
        again_at = self._deadline if self._renewing else min(self._renew_at, self._deadline)
        return Care(renew=False, again_at=again_at)

    def _renewal(self) -> Command:
        """What asks the store for more time, or only whether it stands."""
        ttl = self._terms.ttl
        if self._doubted is not None and not self._terms.auto_renew:
            ttl = max(self._deadline - self._rt.now(), MIN_TTL)
        return Renew(self.key, self._id, ttl, self._rt.inbox)

    def _renewed(self, answer: Answer) -> None:
        """The store's word on a renewal; of no interest any more once the lease has ended."""
        self._renewing = False
        if self._end is not None:
            return
        if self._rt.now() >= self._deadline:
            self._lose(self._why_over())  # past its deadline it stays lost, whatever the store says
        elif not self._follow(answer):
            self._not_renewed(DibsError(f"the store answered a renewal with {answer.reply!r}"))

    def _follow(self, answer: Answer) -> bool:
        """Go by the store's answer to a renewal; False if it says nothing about the lease."""
        reply = answer.reply
        if isinstance(reply, Renewed) or (isinstance(reply, Granted) and reply.token == self.token):
            self._extend(answer.sent, reply.ttl)
        elif isinstance(reply, Lost):
            self._lose(reply.reason, self._told_by(reply))
        elif isinstance(reply, Queued | Granted):  # it waits there, or holds by another grant
            self._lose("expired", FORGOTTEN)
        else:
            return False
        return True

    def _not_renewed(self, error: Exception) -> None:
        """A renewal's fate is unknown: it is tried again until the deadline."""
        self._renewing = False
        if self._end is None:
            now = self._rt.now()
            self._trouble = str(error) or type(error).__name__
            log.info("a renewal of %s failed, trying again: %s", key_shown(self.key), error)
            ttl = self._terms.ttl
            # a transaction takes as long as it takes, and asking keeps others waiting
            self._renew_at = now + (
                min(ttl / 20, 1.0) if self._uncommitted_at is None else ttl / 10
            )
            self._watch_from(now, 0.0)

    def _doubt(self) -> bool:
        """A notification says that it was revoked: tell whether to renew it now, to go by the answer."""
        if self._end is not None:
            return False
        self._doubted = self._rt.now()
        if self._renewing:
            return False  # it is renewed again once that answer is there
        self._renewing = True
        return True

    def _lose(self, reason: str, detail: str = "") -> None:
        """It has ended before its holder gave it up: tell everybody who wants to know."""
        self._detail = detail
        if not self._finish(reason) or generation.number != self._generation:
            return  # in a forked child there is nobody to tell
        if reason == "closed":
            self._hand_back()  # otherwise its body may go on for a moment: it is handed back after that
        if self._guard is not None:
            self._guard.fire()
        for signal in tuple(self._watchers or ()):
            signal.set()
        log.warning("%s", self._loss())  # last: whoever writes it may block

    # -- within -------------------------------------------------------------------------------------

    def _hold_on(self, terms: Terms) -> None:
        """It was kept for its holder, who has it from now on, on these terms."""
        now = self._rt.now()
        self._terms = terms
        if terms.max_hold is not None:
            self._hold_until = now + terms.max_hold
            self._deadline = min(self._deadline, self._hold_until)
        if self._end is None:
            self._watch_from(now, 0.0)

    def _extend(self, sent: float, ttl: float) -> None:
        """The store keeps it for `ttl` from `sent` at least."""
        self._trouble = None
        self._claim_by = None
        acquired_at = self._uncommitted_at  # once, as the keeper may be here too
        if acquired_at is not None and sent > acquired_at:
            self._uncommitted_at = None
        deadline = max(self._deadline, sent + self._trusted(ttl))
        self._deadline = deadline if self._hold_until is None else min(deadline, self._hold_until)
        if self._doubted is not None and sent >= self._doubted:
            self._doubted = None
        lead = 0.0 if self._doubted is not None else self._lead
        self._renew_at = sent + lead
        self._watch_from(self._rt.now(), lead)
        if self._seen is not None:
            self._seen.renewed()

    @property
    def _lead(self) -> float:
        """Seconds from one renewal to the next."""
        return renew_after(self._terms.ttl)

    def _trusted(self, ttl: float) -> float:
        """Seconds that its holder trusts it, of the `ttl` that the store has promised."""
        return trusted(ttl)

    def _watch_from(self, now: float, lead: float) -> None:
        at = self._renew_at
        if not self._wants_renewal or at > self._deadline:
            at, lead = self._deadline, max(self._deadline - now, 0.0)
        self._rt.keeper.watch(self, at, lead)

    def _why_over(self) -> LossReason:
        return "max_hold" if self._hold_until == self._deadline else "expired"

    def _finish(self, how: str) -> bool:
        """End it once, in whichever thread comes first; tell whether that was us."""
        try:
            self._alive.pop()
        except IndexError:
            return False
        self._end = how
        here = generation.number == self._generation
        if how in LOSSES and here and self._terms.on_lost is not None:
            self._rt.call_soon(self._call_on_lost)  # first: the program may end with the block
        self._rt.keeper.unwatch(self)
        self._let_go()
        if how not in LOSSES:
            for signal in tuple(self._watchers or ()):
                signal.set()
        if self._seen is not None and here:
            self._seen.ended(how)
        return True

    def _hand_back(self) -> None:
        """It was lost, and its holder has ended or must: the store need not keep it to its expiry."""
        if not self._handed_back and self._end in LOSSES and generation.number == self._generation:
            self._handed_back = True
            self._abandon()

    def _let_go(self) -> None:
        """Its task or thread no longer holds the key."""
        if self._terms.exclusive:
            self._rt.holding.drop(self.key, self._me, self)

    def _loss(self, reason: LossReason | None = None) -> LeaseLost:
        why = reason or self.reason or "expired"
        detail = self._detail or (self._trouble or "" if why == "expired" else "")
        return loss_of(self.key, self.token, why, detail, renews=self._terms.auto_renew)

    def _told_by(self, reply: Lost) -> str:
        """What the store had to say of a loss."""
        if reply.reason != "expired" or reply.detail:
            return reply.detail
        return FORGOTTEN if self._uncommitted_at is None else NEVER_WAS

    def _farewell(self) -> Release:
        """What gives it up."""
        return Release(self.key, self._id, 0.0, self._burial())

    def _abandon(self) -> None:
        """Have it given up in the background."""
        self._rt.keeper.abandon(self.key, self._id, self._burial())

    def _burial(self) -> float:
        return burial(self._rt.call_timeout) if self._doubtful else 0.0

    def _call_on_lost(self) -> None:
        try:
            assert self._terms.on_lost is not None
            self._terms.on_lost(self)
        except Exception:
            log.exception("on_lost of %s failed", key_shown(self.key))

    def _drop(self) -> None:
        """Give it up in silence, if that hasn't been done: whoever should have done it was interrupted."""
        if self._generation == generation.number and self._finish("forgotten"):
            self._abandon()

    def __del__(self) -> None:
        try:
            if self._end is not None or self._generation != generation.number:
                return
        except AttributeError:
            return  # it never came to be
        if self._finish("forgotten"):
            self._abandon()
            if self._uncommitted_at is not None:
                return  # whoever's transaction has failed has nothing to release
            told = (
                f"a lease on {key_shown(self.key)} was dropped without release(): "
                "it is given up now; use `with`, or keep the lease and call release()"
            )
            log.warning("%s", told)  # Python hides a ResourceWarning unless it is asked for
            warnings.warn(
                told,
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
