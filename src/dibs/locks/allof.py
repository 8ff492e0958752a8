"""`AllOf`: several leases, all or nothing.

All keys are tried in one round trip. If that fails, they are taken in their order, waiting for one at a
time. A waiter holds only keys that come before the one it waits for, so two who want the same keys never
deadlock, and the queue of each key keeps anybody from starving.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, ClassVar, Unpack

from dibs.config import UNSET, Duration, Unset, optional_seconds, safe_ttl
from dibs.core.timing import burial, trusted
from dibs.errors import AcquireTimeout, BackendUnavailable, DibsError
from dibs.locks import hooks
from dibs.locks.acquire import BRIEFLY, Acquiring
from dibs.locks.allof_leases import LeasesBase, Part, Wish, checked, in_order, release_together
from dibs.locks.entering import Entering
from dibs.locks.lease import LeaseBase
from dibs.locks.messages import contention, key_shown, refusal, unexpected
from dibs.locks.options import NoOptions, refuse_options
from dibs.locks.primitive import PrimitiveBase
from dibs.locks.requests import Grant, Terms, new_id
from dibs.locks.transaction import ask_once
from dibs.locks.waiting import OnWait, check_on_wait
from dibs.model import Granted, Refused
from dibs.runtime.port import Answer, Runtime, Told


class Gathering:
    """One way to leases on several keys; `wishes` are in the order of the keys."""

    def __init__(self, rt: Runtime, wishes: Sequence[Wish], me: object) -> None:
        self._rt = rt
        self._wishes = wishes
        self._me = me
        self._held: list[Any] = []
        """Leases on the first of the keys, as many as were to be had."""

    async def run(self, wait: float | None) -> list[Any]:
        """All of them within `wait` seconds (None: for ever; 0: one try); else none is kept."""
        try:
            await self._gather(wait)
            return self._held
        except BaseException as error:
            try:
                if isinstance(error, AcquireTimeout):
                    await release_together(self._rt, self._held)
            finally:
                for lease in self._held:
                    lease._drop()  # unless that was done
            raise

    async def _gather(self, wait: float | None) -> None:
        until = inf if wait is None else self._rt.now() + wait
        while True:
            before = len(self._held)
            refused = await self._try_the_rest(wait, until)
            if refused is None and await self._complete(before):
                return
            if refused is not None:
                await self._wait_for_the_next(wait, until)
            await self._drop_from_the_first_lost()

    # -- trying -------------------------------------------------------------------------------------

    async def _try_the_rest(self, wait: float | None, until: float) -> DibsError | None:
        """Try what is not held in one round trip; keep what comes before the first that was refused.

        Returns why that was refused. Raises that if there is no time to wait for it.
        """
        rest = self._wishes[len(self._held) :]
        if not rest:
            return None
        patience = None if wait is None else max(until - self._rt.now(), BRIEFLY)
        trial = Trial(self._rt, rest, self._me)
        outcomes = await trial.run(patience, at_once=not self._held)
        first = len(self._held)
        self._held += [each for each in outcomes if isinstance(each, LeaseBase)]
        problems = [each for each in outcomes if isinstance(each, DibsError)]
        if not problems:
            return None
        for problem in problems:
            if not isinstance(problem, AcquireTimeout | BackendUnavailable):
                raise problem
        if wait == 0:
            raise problems[0]
        if self._rt.now() >= until:
            raise self._gave_up(problems[0], wait)
        await self._release_from(first + outcomes.index(problems[0]))
        return problems[0]

    async def _release_from(self, place: int) -> None:
        """Keep no lease on that key or a later one, in one round trip."""
        beyond = self._held[place:]
        if beyond:
            await release_together(self._rt, beyond)
            del self._held[place:]

    # -- waiting ------------------------------------------------------------------------------------

    async def _wait_for_the_next(self, wait: float | None, until: float) -> None:
        """Queue for the first key that is not held, and for no other."""
        rt, wish = self._rt, self._wishes[len(self._held)]
        left = None if wait is None else max(until - rt.now(), 0.0)
        try:
            grant = await Acquiring(rt, wish.ask, wish.on_wait).run(left)
        except AcquireTimeout as error:
            raise self._gave_up(error, wait) from None
        self._held.append(wish.primitive._hold(rt, on_standby(wish.terms), grant, self._me))

    async def _drop_from_the_first_lost(self) -> None:
        """A lease that was lost while we waited, and all on later keys: they are to be had anew."""
        standing = [lease._stands for lease in self._held]
        if not all(standing):
            await self._release_from(standing.index(False))

    # -- ends ---------------------------------------------------------------------------------------

    async def _complete(self, before: int) -> bool:
        """All are there: from now on they are held on their own terms, unless one was lost meanwhile.

        The time of those that are not renewed counts from here.
        """
        due = [
            lease
            for lease, wish in zip(self._held[:before], self._wishes, strict=False)
            if not wish.terms.auto_renew
        ]
        if due:
            await self._renew(due)
        if not all(lease._stands for lease in self._held[:before]):
            return False
        for lease, wish in zip(self._held, self._wishes, strict=True):
            if lease._terms is not wish.terms:
                lease._hold_on(wish.terms)
        return True

    async def _renew(self, leases: Sequence[LeaseBase]) -> None:
        told = await self._rt.call_all([lease._renewal() for lease in leases])
        for lease, each in zip(leases, told, strict=True):
            if isinstance(each, Answer):
                lease._renewed(each)
            else:
                lease._not_renewed(each)

    def _gave_up(self, error: DibsError, wait: float | None) -> DibsError:
        """Why none is had, after all that time."""
        if not isinstance(error, AcquireTimeout):
            return error
        assert error.key is not None
        return AcquireTimeout(
            f"{contention(error.key, error.holders, error.position)}; "
            f"gave up on all {len(self._wishes)} after {wait:g} s",
            key=error.key,
            holders=error.holders,
            position=error.position,
            retry_after=error.retry_after,
        )


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
        try:
            if not rt.is_ready:
                await rt.ready(patience)
        except BackendUnavailable as error:
            return [error] * len(self._wishes)
        commands = [
            ask_once(wish.ask, lease_id, rt.inbox)
            for wish, lease_id in zip(self._wishes, self._ids, strict=True)
        ]
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


class AllOfBase[LeasesT: LeasesBase[Any]](Entering[LeasesT]):
    """Several resources that are acquired together; like every primitive, without state."""

    _leases_type: type[LeasesT]
    _takes: ClassVar[type[PrimitiveBase[Any]]]
    _world: ClassVar[str]
    _may_await: ClassVar[bool] = True
    """Its callbacks may be coroutine functions."""

    def __init__(
        self,
        *members: Any,
        wait: Duration | Unset | None = UNSET,
        ttl: Duration | Unset = UNSET,
        on_wait: OnWait | None = None,
        **others: Unpack[NoOptions],
    ) -> None:
        if others:
            refuse_options("AllOf()", others, AllOfBase.__init__)
        given: dict[str, Any] = {}
        if not isinstance(ttl, Unset):
            given["ttl"] = safe_ttl(ttl)
        if not isinstance(wait, Unset):
            given["wait"] = optional_seconds(wait, "wait")
        if on_wait is not None:
            given["on_wait"] = self._checked(on_wait)
        self._named = [part._replace(**given) for part in self._flat(members)]
        if not self._named:
            raise ValueError(
                "AllOf is given nothing: name what is to be held, as AllOf(lock, other)"
            )
        self._parts = in_order(self._named)
        self._wait = self._shortest()
        by_client = {id(part.primitive._client): part.primitive for part in self._parts}
        self._of_each_client = list(by_client.values())
        self._entered = {}

    def _flat(self, members: tuple[Any, ...]) -> list[Part]:
        """The parts as they were named, those of another AllOf among them, as that has them."""
        parts: list[Part] = []
        for member in members:
            if isinstance(member, AllOfBase):
                within: list[Part] = member._named
                for part in within:
                    checked(part.primitive, self._takes, self._world)
                parts += within
            else:
                parts.append(checked(member, self._takes, self._world))
        return parts

    def _checked(self, on_wait: OnWait | None) -> OnWait | None:
        if on_wait is not None:
            check_on_wait(on_wait, may_await=self._may_await)
        return on_wait

    def _shortest(self) -> float | None:
        """How long those wait that would wait the shortest; None: for ever."""
        waits = [part.patience for part in self._named]
        return min((wait for wait in waits if wait is not None), default=None)

    # -- where --------------------------------------------------------------------------------------

    def _runtime(self) -> Runtime:
        return self._of_each_client[0]._runtime()

    def _only_runtime(self) -> Runtime:
        rt = self._runtime()
        if any(each._runtime() is not rt for each in self._of_each_client[1:]):
            raise ValueError(
                f"{self._called} are not all of one client, and only one store can give all or nothing: "
                "make all of them by the same client"
            )
        return rt

    @property
    def _called(self) -> str:
        return ", ".join(key_shown(part.key) for part in self._parts)

    def __repr__(self) -> str:
        return f"<AllOf {self._called}>"

    # -- acquiring ----------------------------------------------------------------------------------

    async def _acquire(
        self,
        wait: Duration | Unset | None = UNSET,
        priority: int | None = None,
        note: str | None = None,
        on_wait: OnWait | None = None,
    ) -> LeasesT:
        rt = self._only_runtime()
        patience = self._wait if isinstance(wait, Unset) else optional_seconds(wait, "wait")
        for part in self._parts:
            await part.primitive._check_the_store(rt)
        me = rt.me()
        self._checked(on_wait)
        leases: dict[bytes, Any] = {}
        try:
            await self._take_again(rt, me, patience, leases)
            rest = [part for part in self._parts if part.key not in leases]
            wishes = [part.wish(priority, note, on_wait) for part in rest]
            if wishes:
                leases |= await self._gathered(rt, wishes, me, patience)
            return self._leases_type(rt, [leases[part.key] for part in self._named], me)
        except BaseException:
            for lease in leases.values():
                lease._drop()
            raise

    async def _take_again(
        self, rt: Runtime, me: object, patience: float | None, leases: dict[bytes, Any]
    ) -> None:
        """What our task or thread holds already: another lease of it, where it may be held twice."""
        for part in self._parts:
            again = await part.primitive._held_already(rt, me, patience)
            if again is not None:
                leases[part.key] = again

    async def _gathered(
        self, rt: Runtime, wishes: list[Wish], me: object, patience: float | None
    ) -> dict[bytes, Any]:
        """What nobody of us holds yet."""
        seen = None
        if hooks.observer is not None:
            seen = hooks.observer.acquiring([each.ask for each in wishes], patience, me)
            wishes = [each._replace(ask=seen.traced(each.ask)) for each in wishes]
        try:
            holds = await Gathering(rt, wishes, me).run(patience)
        except BaseException as error:
            if seen is not None:
                seen.end(error)
            if isinstance(error, AcquireTimeout):
                for wish in wishes:
                    if wish.ask.key == error.key:
                        wish.primitive._look_at(error)
            raise
        if seen is not None:
            seen.end(None)
        return {
            wish.ask.key: wish.primitive._given(hold)
            for wish, hold in zip(wishes, holds, strict=True)
        }

    async def _try(self, priority: int | None = None, note: str | None = None) -> LeasesT | None:
        try:
            return await self._acquire(0, priority, note)
        except AcquireTimeout:
            return None
