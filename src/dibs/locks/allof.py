"""`AllOf`: several leases, all or nothing.

The first try takes all keys in one round trip. If that fails, they are acquired in the order of the keys,
waiting for one at a time. A waiter holds only keys that come before the one it waits for. So two who want the
same keys never deadlock, and no waiter starves, because each key has its queue.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from math import inf
from typing import Any, ClassVar, NamedTuple, NoReturn, Unpack, overload

from dibs.config import UNSET, Duration, LockConfig, Unset, optional_seconds, safe_ttl
from dibs.errors import AcquireTimeout, BackendUnavailable, DibsError
from dibs.locks import hooks
from dibs.locks.acquire import BRIEFLY, AcquireAttempt, refused
from dibs.locks.base import PrimitiveBase, ReusableContext
from dibs.locks.lease import LeaseBase, give_up, raise_loss
from dibs.locks.messages import (
    LossReason,
    format_duration,
    format_key,
    is_away,
    not_acquired,
    unexpected,
)
from dibs.locks.requests import (
    AcquireRequest,
    Grant,
    HoldOptions,
    NoOptions,
    new_id,
    refuse_options,
)
from dibs.locks.waiting import OnWait, check_on_wait
from dibs.model import Granted, Refused
from dibs.runtime.port import CallResult, Runtime, TimedReply


class LeasesBase[LeaseT: LeaseBase](Sequence[LeaseT]):
    """The leases of an `AllOf`, in the order of its arguments; made by it only."""

    __slots__ = ("__weakref__", "_each", "_me", "_once", "_rt")

    def __init__(self, rt: Runtime, leases: Iterable[LeaseT], me: object) -> None:
        self._each = tuple(leases)
        self._once = tuple(dict.fromkeys(self._each))
        self._rt = rt
        self._me = me

    def __len__(self) -> int:
        return len(self._each)

    @overload
    def __getitem__(self, index: int) -> LeaseT: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LeaseT]: ...
    def __getitem__(self, index: int | slice) -> LeaseT | Sequence[LeaseT]:
        return self._each[index]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The fencing tokens."""
        return tuple(lease.token for lease in self._each)

    @property
    def lost(self) -> bool:
        """True if one of them ended before its holder gave it up."""
        return any(lease.lost for lease in self._once)

    @property
    def reason(self) -> LossReason | None:
        """Why the first lost one, in the order of the arguments, was lost; None if none was."""
        return next((lease.reason for lease in self._once if lease.lost), None)

    @property
    def remaining(self) -> float:
        """Seconds until the first of their deadlines; 0 once one has ended."""
        return min(lease.remaining for lease in self._once)

    def ensure(self, needs: Duration = 0) -> None:
        """Raise unless each has at least `needs` (seconds, or "2s") left before its deadline.

        Raises `LeaseLost` that names the one that is lost or has too little left, `NotHeld` if one was
        given up.
        """
        for lease in self._once:
            lease.ensure(needs)

    def __repr__(self) -> str:
        names = ", ".join(format_key(lease.key) for lease in self._once)
        state = self.reason or (
            f"{format_duration(self.remaining)} left" if self.remaining else "given up"
        )
        return f"<Leases on {names}, {state}>"

    async def _release(self) -> bool:
        """Release all in one round trip; return whether each was held until now."""
        return await release_together(self._rt, self._once)

    async def _wait_lost(self, timeout: float | None) -> bool:
        """Wait until one is lost; False at the timeout, or once all were given up."""
        rt = self._rt
        until = None if timeout is None else rt.now() + timeout
        while not self.lost:
            held = [lease for lease in self._once if lease._end is None]
            left = None if until is None else until - rt.now()
            if not held or (left is not None and left <= 0):
                break
            signal = rt.signal()
            try:
                for lease in held:
                    lease._signal_end(signal)
                await signal.wait(left)
            finally:
                for lease in held:
                    lease._signal_no_more(signal)
        return self.lost

    async def _begin(self) -> None:
        """Begin a block. If one is lost already, give up the others and raise `LeaseLost`."""
        entered: list[LeaseT] = []
        try:
            for lease in self._once:
                lease._enter()
                entered.append(lease)
        except BaseException as error:
            for lease in entered:
                lease._exit_block(error)
            failed = len(entered)  # it has been given up by `_enter`
            for lease in (*entered, *self._once[failed + 1 :]):
                lease._discard()
            raise

    async def _leave(self, exc: BaseException | None) -> None:
        """End a block: release all. Raise `LeaseLost` if a loss ended the body."""
        # all of them, as each that was lost takes its own cancellation back
        ends = [lease._exit_block(exc) for lease in self._once]
        standing = [lease for lease in self._once if lease._stands]
        ended = [lease._settle_loss() for lease in self._once if lease not in standing]
        if standing:
            await release_together(self._rt, standing)
            ended += [lease._unseen_loss() for lease in standing]
        losses = [loss for loss in ended if loss is not None]
        if losses:
            for other in losses[1:]:
                losses[0].add_note(str(other))
            raise_loss(losses[0], exc, any(ends))


async def release_together(rt: Runtime, leases: Sequence[LeaseBase]) -> bool:
    """Release them; return whether all were held until now. Never raises because the store is away."""
    stood = all(lease._stands for lease in leases)
    ended: list[LeaseBase] = []
    try:
        ended.extend(lease for lease in leases if lease._begin_release())
        results = await rt.call_all([lease._release_command() for lease in ended]) if ended else ()
    except BaseException:
        for lease in ended:
            lease._abandon()
        raise
    were_held = [lease._finish_release(each) for lease, each in zip(ended, results, strict=True)]
    return stood and all(were_held)


# -- the arguments ----------------------------------------------------------------------------------------


class AllOfPart(NamedTuple):
    """A primitive that an `AllOf` acquires, and the options for that."""

    primitive: PrimitiveBase[Any]
    units: int = 1
    ttl: float | None = None
    """None: the primitive's own."""
    wait: float | Unset | None = UNSET
    """Unset: the primitive's own; None: no limit."""
    on_wait: OnWait | None = None
    """None: the primitive's own."""

    @property
    def key(self) -> bytes:
        """The primitive's key."""
        return self.primitive.key

    @property
    def own_wait(self) -> float | None:
        """Seconds to wait for it; None: no limit."""
        wait: Any = self.primitive.config.wait if isinstance(self.wait, Unset) else self.wait
        seconds: float | None = wait
        return seconds

    def differences(self) -> dict[str, Any]:
        """The options of its lease, to compare."""
        primitive = self.primitive
        found = {field.name: getattr(primitive.config, field.name) for field in fields(LockConfig)}
        found |= {"capacity": primitive._capacity, "on_lost": primitive._on_lost}
        del found["wait"]  # of the acquire, not of the lease
        return found if self.ttl is None else found | {"ttl": self.ttl}

    def request(
        self, priority: int | None, note: str | None, on_wait: OnWait | None, *, detects: bool
    ) -> "PartRequest":
        """The request, from this process. Without `detects` its wait is not looked at for deadlocks."""
        self.primitive._describe_here()
        request, options = self.primitive._changed_request(self.units, priority, note)
        request = request._replace(detects=request.detects and detects)
        if self.ttl is not None:
            request, options = request._replace(ttl=self.ttl), options._replace(ttl=self.ttl)
        on_wait = on_wait or self.on_wait or self.primitive._on_wait
        return PartRequest(self.primitive, request, options, on_wait)


class PartRequest(NamedTuple):
    """The request of a part, and how to hold its lease."""

    primitive: PrimitiveBase[Any]
    request: AcquireRequest
    options: HoldOptions
    on_wait: OnWait | None

    def hold(self, rt: Runtime, grant: Grant, me: object, *, standby: bool) -> Any:
        """Make a lease of a grant. On standby, while others are awaited, its loss is not reported."""
        options = self.options
        if standby:
            options = options._replace(auto_renew=True, max_hold=None, on_lost=None)
        return self.primitive._hold(rt, options, grant, me)


_INSTEAD = {
    "tasklock": "a TaskLock never waits, and stays closed after it was given up: acquire it alone, "
    "before the others",
    "leader": "a LeaderElection is won once and led for long: lead first, and acquire the others "
    "inside",
    "rwlock": "say what for: lock.read() or lock.write()",
}


def part_of(member: object, takes: type[PrimitiveBase[Any]], side: str) -> AllOfPart:
    """Check an argument, a primitive or a pair of one and its units. Raises `TypeError`, `ValueError`."""
    primitive, units = member if isinstance(member, tuple) and len(member) == 2 else (member, 1)
    if not isinstance(primitive, takes):
        _refuse(primitive, side)
    if isinstance(member, tuple):
        _check_units(primitive, units)
    return AllOfPart(primitive, units)


def _refuse(member: Any, side: str) -> NoReturn:
    why = _INSTEAD.get(getattr(member, "kind", ""))
    if isinstance(member, PrimitiveBase) and (why is None or member.kind == "rwlock"):
        made_for = "asyncio" if member._may_await else "threads"
        why = f"it is made for {made_for}: take it from {side}, as this AllOf is"
    if why is None:
        why = "give locks, semaphores, pairs such as (semaphore, 2), and sides of RWLocks"
    raise TypeError(f"AllOf can't hold {member!r}: {why}")


def _check_units(primitive: PrimitiveBase[Any], units: object) -> None:
    if primitive.kind == "rwlock":
        raise ValueError(f"{primitive!r} has no units to choose: a reader takes one, a writer all")
    if type(units) is not int:
        raise TypeError(f"({primitive!r}, {units!r}): the second is a number of units, an int")
    if not 1 <= units <= primitive._capacity:
        raise ValueError(
            f"({primitive!r}, {units}): units must be at least 1, and {format_key(primitive.key)} has a "
            f"capacity of {primitive._capacity}"
        )


def in_order(named: Iterable[AllOfPart]) -> list[AllOfPart]:
    """Each key once, in the order of the keys, which is the same for every `AllOf`.

    Raises `ValueError` if a key is named twice with different options.
    """
    once: dict[bytes, AllOfPart] = {}
    for part in named:
        known = once.setdefault(part.key, part)
        if known is not part:
            _check_same(known, part)
            once[part.key] = known._replace(on_wait=known.on_wait or part.on_wait)
    return [once[key] for key in sorted(once)]


def _check_same(one: AllOfPart, other: AllOfPart) -> None:
    name = format_key(one.key)
    if one.primitive.kind == "rwlock" and one.primitive._units != other.primitive._units:
        raise ValueError(f"{name} is named for reading and for writing: write() is enough for both")
    if one.units != other.units:
        raise ValueError(
            f"{name} is named twice, for {one.units} and for {other.units} units: name it once, "
            "with as many as are wanted in all"
        )
    before, after = one.differences(), other.differences()
    differing = [what for what in before if before[what] != after[what]]
    if differing:
        raise ValueError(
            f"{name} is named twice, with another {' and '.join(differing)}: one lease can't be held "
            "in two ways, so name it once"
        )


# -- acquiring --------------------------------------------------------------------------------------------


class AllOfAttempt:
    """An attempt to acquire several keys; `requests` are in the order of the keys."""

    def __init__(self, rt: Runtime, requests: Sequence[PartRequest], me: object) -> None:
        self._rt = rt
        self._requests = requests
        self._me = me
        self._held: list[Any] = []
        """Leases on the first of the keys."""

    async def run(self, wait: float | None) -> list[Any]:
        """Acquire all within `wait` seconds (None: no limit; 0: one try), or keep none."""
        try:
            await self._gather(wait)
            return self._held
        except BaseException as error:
            try:
                if isinstance(error, AcquireTimeout):
                    await release_together(self._rt, self._held)
            finally:
                for lease in self._held:
                    lease._discard()  # unless it was released
            raise

    async def _gather(self, wait: float | None) -> None:
        until = inf if wait is None else self._rt.now() + wait
        while True:
            before = len(self._held)
            error = await self._try_the_rest(wait, until)
            if error is not None:
                await self._wait_for_the_next(wait, until)
            elif await self._complete(before):
                return
            standing = [lease._stands for lease in self._held]
            if not all(standing):  # lost while we waited: acquire it and all later keys again
                await self._release_from(standing.index(False))

    async def _try_the_rest(self, wait: float | None, until: float) -> DibsError | None:
        """Try the keys that are not held in one round trip; keep those before the first refusal.

        Returns the reason of that refusal. Raises it if there is no time to wait.
        """
        rest = self._requests[len(self._held) :]
        if not rest:
            return None
        first = len(self._held)
        outcomes = await self._try_each(rest, max(until - self._rt.now(), BRIEFLY))
        self._held += [each for each in outcomes if isinstance(each, LeaseBase)]
        errors = [each for each in outcomes if isinstance(each, DibsError)]
        if not errors:
            return None
        for error in errors:
            if not isinstance(error, AcquireTimeout | BackendUnavailable):
                raise error
        if wait == 0:
            raise errors[0]
        if self._rt.now() >= until:
            raise self._timed_out(errors[0], wait)
        await self._release_from(first + outcomes.index(errors[0]))
        return errors[0]

    async def _try_each(
        self, requests: Sequence[PartRequest], timeout: float
    ) -> list[LeaseBase | DibsError]:
        """Try each once, under an id of its own. An error or interrupt leaves no id with a grant."""
        rt = self._rt
        rt.keeper.prepare()
        ids = [new_id() for _ in requests]
        outcomes: list[LeaseBase | DibsError] = []
        try:
            results: Sequence[CallResult]
            limit = None if timeout == inf else timeout
            try:
                if not rt.is_ready:
                    await rt.ready(limit)  # the inbox is known from here on
                commands = [
                    each.request.command(lease_id, rt.inbox)
                    for each, lease_id in zip(requests, ids, strict=True)
                ]
                results = await rt.call_all(commands, limit)
            except BackendUnavailable as error:
                results = [error] * len(requests)
            granted = [isinstance(x, TimedReply) and isinstance(x.reply, Granted) for x in results]
            standby = bool(self._held) or not all(granted)
            for each, lease_id, result in zip(requests, ids, results, strict=True):
                outcomes.append(self._outcome(each, lease_id, result, standby))
            return outcomes
        except BaseException:
            for outcome in outcomes:
                if isinstance(outcome, LeaseBase):
                    outcome._discard()
            done = len(outcomes)
            for each, lease_id in zip(requests[done:], ids[done:], strict=True):
                give_up(rt, each.request.key, lease_id, doubtful=True)
            raise

    def _outcome(
        self, request: PartRequest, lease_id: str, result: CallResult, standby: bool
    ) -> LeaseBase | DibsError:
        key = request.request.key
        if isinstance(result, TimedReply) and isinstance(result.reply, Granted):
            grant = Grant.of(lease_id, result.reply, result.sent, doubtful=result.resent)
            lease: LeaseBase = request.hold(self._rt, grant, self._me, standby=standby)
            return lease
        if not isinstance(result, TimedReply) or result.resent or is_away(result.reply):
            give_up(self._rt, key, lease_id, doubtful=True)
        if not isinstance(result, TimedReply):
            return result
        reply = result.reply
        if isinstance(reply, Refused):
            return refused(request.request, reply)
        return unexpected(reply, key)

    async def _release_from(self, place: int) -> None:
        """Keep no lease on that key or a later one."""
        beyond = self._held[place:]
        if beyond:
            await release_together(self._rt, beyond)
            del self._held[place:]

    async def _wait_for_the_next(self, wait: float | None, until: float) -> None:
        """Queue for the first key that is not held, and for no other."""
        rt, request = self._rt, self._requests[len(self._held)]
        left = None if wait is None else max(until - rt.now(), 0.0)
        try:
            grant = await AcquireAttempt(rt, request.request, request.on_wait).run(left)
        except AcquireTimeout as error:
            raise self._timed_out(error, wait) from None
        self._held.append(request.hold(rt, grant, self._me, standby=True))

    async def _complete(self, before: int) -> bool:
        """Hold each lease on its own options from now on. Return False if one was lost meanwhile.

        A lease without `auto_renew` is renewed once, so that its ttl counts from now.
        """
        requests = self._requests
        due = [
            lease
            for lease, request in zip(self._held[:before], requests, strict=False)
            if not request.options.auto_renew
        ]
        results = await self._rt.call_all([lease._renewal() for lease in due]) if due else ()
        for lease, result in zip(due, results, strict=True):
            if isinstance(result, TimedReply):
                lease._renewed(result)
            else:
                lease._not_renewed(result)
        if not all(lease._stands for lease in self._held[:before]):
            return False
        for lease, request in zip(self._held, requests, strict=True):
            if lease._options is not request.options:
                lease._hold_on(request.options)
        return True

    def _timed_out(self, error: DibsError, wait: float | None) -> DibsError:
        """The error after all that time; `error` is about one key."""
        if not isinstance(error, AcquireTimeout):
            return error
        assert error.key is not None
        gave_up = f"gave up on all {len(self._requests)} after {wait:g} s"
        return not_acquired(error.key, error.holders, gave_up, error.position, error.retry_after)


class AllOfBase[LeasesT: LeasesBase[Any]](ReusableContext[LeasesT]):
    """Several resources that are acquired together, on both sides."""

    _leases_type: type[LeasesT]
    _takes: ClassVar[type[PrimitiveBase[Any]]]
    _side: ClassVar[str]
    """Where users import it from."""
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
            check_on_wait(on_wait, may_await=self._may_await)
            given["on_wait"] = on_wait
        self._named = [part._replace(**given) for part in self._flat(members)]
        if not self._named:
            raise ValueError(
                "AllOf is given nothing: name what is to be held, as AllOf(lock, other)"
            )
        self._parts = in_order(self._named)
        waits = [part.own_wait for part in self._named]
        self._wait = min((wait for wait in waits if wait is not None), default=None)
        by_client = {id(part.primitive._client): part.primitive for part in self._parts}
        self._of_each_client = list(by_client.values())
        self._entered = {}

    def _flat(self, members: tuple[Any, ...]) -> list[AllOfPart]:
        """The parts in the order of the arguments, including those of other `AllOf`s."""
        parts: list[AllOfPart] = []
        for member in members:
            if isinstance(member, AllOfBase):
                for part in member._named:
                    part_of(part.primitive, self._takes, self._side)
                parts += member._named
            else:
                parts.append(part_of(member, self._takes, self._side))
        return parts

    def _runtime(self) -> Runtime:
        return self._of_each_client[0]._runtime()

    @property
    def _called(self) -> str:
        return ", ".join(format_key(part.key) for part in self._parts)

    def __repr__(self) -> str:
        return f"<AllOf {self._called}>"

    async def _acquire(
        self,
        wait: Duration | Unset | None = UNSET,
        priority: int | None = None,
        note: str | None = None,
        on_wait: OnWait | None = None,
    ) -> LeasesT:
        rt = self._runtime()
        if any(each._runtime() is not rt for each in self._of_each_client[1:]):
            raise ValueError(
                f"{self._called} are not all of one client, and only one store can give all or nothing: "
                "make all of them by the same client"
            )
        limit = self._wait if isinstance(wait, Unset) else optional_seconds(wait, "wait")
        for part in self._parts:
            if part.primitive._require:
                await part.primitive._check_the_store(rt)
        if on_wait is not None:
            check_on_wait(on_wait, may_await=self._may_await)
        me = rt.me()
        leases: dict[bytes, Any] = {}
        try:
            expiring: set[bytes] = set()
            for part in self._parts:  # acquire again what we hold already, if it is reentrant
                own = rt.holding.get(part.key, me)
                if own is not None and part.primitive._waits_for_own(
                    limit, renewed=own._options.auto_renew
                ):
                    expiring.add(part.key)
                    continue
                again = await part.primitive._held_already(rt, me, limit)
                if again is not None:
                    leases[part.key] = again
            rest = [part for part in self._parts if part.key not in leases]
            if rest:
                requests = [
                    part.request(priority, note, on_wait, detects=part.key not in expiring)
                    for part in rest
                ]
                leases |= await self._acquire_new(rt, requests, me, limit)
            return self._leases_type(rt, [leases[part.key] for part in self._named], me)
        except BaseException:
            for lease in leases.values():
                lease._discard()
            raise

    async def _acquire_new(
        self, rt: Runtime, requests: list[PartRequest], me: object, limit: float | None
    ) -> dict[bytes, Any]:
        """Acquire the keys that this task or thread does not hold; return their leases."""
        hook = None
        if hooks.observer is not None:
            hook, traced = hooks.begin([each.request for each in requests], limit, me)
            pairs = zip(requests, traced, strict=True)
            requests = [each._replace(request=request) for each, request in pairs]
        try:
            leases = await AllOfAttempt(rt, requests, me).run(limit)
        except BaseException as error:
            if hook is not None:
                hook.end(error)
            if isinstance(error, AcquireTimeout):
                for each in requests:
                    if each.request.key == error.key:
                        each.primitive._check_holders(error.holders)
            raise
        if hook is not None:
            hook.end(None)
        return {
            each.request.key: each.primitive._given(lease)
            for each, lease in zip(requests, leases, strict=True)
        }

    async def _try(self, priority: int | None = None, note: str | None = None) -> LeasesT | None:
        try:
            return await self._acquire(0, priority, note)
        except AcquireTimeout:
            return None
