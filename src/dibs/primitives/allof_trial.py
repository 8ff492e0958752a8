"""One try for several keys, in one round trip."""

from collections.abc import Sequence
from typing import Any

from dibs.core.timing import burial, trusted
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Granted, Refused
from dibs.primitives.allof_parts import Wish
from dibs.primitives.ask import Grant
from dibs.primitives.ids import new_id
from dibs.primitives.joining import ask_once
from dibs.primitives.lease import LeaseBase
from dibs.primitives.refusals import refusal, unexpected
from dibs.primitives.terms import Terms
from dibs.runtime.port import Answer, Runtime, Told

type Outcome = LeaseBase | DibsError


def on_standby(terms: Terms) -> Terms:
    """How a lease is kept until all are there: renewed, and nobody is told of its loss."""
    return terms._replace(auto_renew=True, max_hold=None, on_lost=None)


class Trial:
    """Asks for each key once, under an id of its own; whatever ends it, no id is left with a grant."""

    def __init__(self, rt: Runtime, wishes: Sequence[Wish], me: object) -> None:
        self._rt = rt
        self._wishes = wishes
        self._me = me
        self._ids = [new_id() for _ in wishes]
        self._outcomes: list[Outcome] = []

    async def run(self, patience: float | None, *, at_once: bool) -> list[Outcome]:
        """A lease for each key, or why not. With `at_once` they are held on their own terms, if all are."""
        try:
            told = await self._ask(patience)
            final = at_once and all(_is_granted(each) for each in told)
            for wish, lease_id, each in zip(self._wishes, self._ids, told, strict=True):
                terms = wish.terms if final else on_standby(wish.terms)
                self._outcomes.append(self._outcome(wish, lease_id, each, terms))
            return self._outcomes
        except BaseException:
            self._undo()
            raise

    async def _ask(self, patience: float | None) -> Sequence[Told]:
        rt = self._rt
        commands = [
            ask_once(wish.ask, lease_id, rt.inbox)
            for wish, lease_id in zip(self._wishes, self._ids, strict=True)
        ]
        try:
            if not rt.is_ready:
                await rt.ready()
        except BackendUnavailable as error:
            return [error] * len(commands)
        return await rt.call_all(commands, patience)

    def _outcome(self, wish: Wish, lease_id: str, told: Told, terms: Terms) -> Outcome:
        key = wish.ask.key
        if not isinstance(told, Answer):
            self._bury(key, lease_id)
            return told
        reply = told.reply
        if isinstance(reply, Granted):
            deadline = told.sent + trusted(reply.ttl)
            grant = Grant(
                lease_id, reply.token, reply.slots, told.sent, deadline, None, told.resent
            )
            lease: LeaseBase = wish.primitive._hold(self._rt, terms, grant, self._me)
            return lease
        if told.resent:
            self._bury(key, lease_id)
        return refusal(wish.ask, reply) if isinstance(reply, Refused) else unexpected(reply, key)

    def _bury(self, key: bytes, lease_id: str) -> None:
        """A copy of what asked for it may still be under way."""
        self._rt.keeper.abandon(key, lease_id, burial(self._rt.call_timeout))

    def _undo(self) -> None:
        for outcome in self._outcomes:
            if isinstance(outcome, LeaseBase):
                outcome._drop()
        rest = len(self._outcomes)
        for wish, lease_id in zip(self._wishes[rest:], self._ids[rest:], strict=True):
            self._bury(wish.ask.key, lease_id)


def _is_granted(told: Any) -> bool:
    return isinstance(told, Answer) and isinstance(told.reply, Granted)
