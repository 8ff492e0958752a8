"""A lease that grows and shrinks: a reader that becomes the writer, a writer that lets readers in.

Each change is a command with a number of its own, and the store heeds the newest only. So a lease is for
writing exactly while the last number it gave out is that of a granted change to all units: whatever task
or thread asks for something else meanwhile, nobody believes in more than the store has given.

A change whose answer got lost may have been made. Then the store may have more taken than we believe in,
never less, and the keeper brings it back to one unit: see `_settle`.
"""

import logging
from typing import Any, Literal

from dibs.config import optional_seconds
from dibs.errors import BackendUnavailable
from dibs.model import MANY, Command, Granted, Lost, Refused, Resize
from dibs.primitives.ask import Grant
from dibs.primitives.handle import Handle
from dibs.primitives.lease import LeaseBase
from dibs.primitives.refusals import unexpected
from dibs.primitives.telling import key_shown
from dibs.primitives.terms import Terms
from dibs.runtime.port import NO_CARE, Answer, Care, Runtime

log = logging.getLogger("dibs")

NEVER = -1

SOON = 0.001
"""The keeper sees to a change after so many seconds."""


class ResizableLease(LeaseBase):
    """A lease on one unit or on all of them."""

    __slots__ = ("_asked", "_number", "_settling", "_written")

    def __init__(self, rt: Runtime, key: bytes, terms: Terms, grant: Grant, me: object) -> None:
        self._number = 0
        """Of the newest change that was asked for."""
        self._written = 0 if terms.units == MANY else NEVER
        """Of the change that gave it all units."""
        self._settling: Resize | None = None
        """A change that the keeper is to bring about."""
        self._asked: Command | None = None
        """What the keeper has asked the store for it last."""
        super().__init__(rt, key, terms, grant, me)

    @property
    def mode(self) -> Literal["read", "write"]:
        """What it is for at this moment; it says nothing of whether the lease is lost."""
        return "write" if self._written == self._number else "read"

    # -- changing -----------------------------------------------------------------------------------

    async def _upgrade(self, wait: Any) -> None:
        from dibs.primitives.upgrading import Upgrading  # only who asks for it pays for it

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
            log.warning("%s lets readers in as soon as may be: %s", key_shown(self.key), error)
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
