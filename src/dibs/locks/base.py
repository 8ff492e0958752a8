"""A primitive: a named resource, how it is acquired and held, and the one way to acquire it."""

import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from socket import gethostname
from typing import Any, ClassVar, Never, Protocol, Self, Unpack, get_args

from dibs.config import (
    UNSET,
    Duration,
    LockConfig,
    Unset,
    check_priority,
    optional_seconds,
)
from dibs.core.names import Kind, key_of, split_key
from dibs.core.timing import trusted
from dibs.errors import AcquireTimeout, LeaseLost, MissingCapability, Reentrant
from dibs.locks import hooks
from dibs.locks.acquire import AcquireAttempt
from dibs.locks.lease import LeaseBase, give_up, unpack_handle
from dibs.locks.messages import format_key, unexpected
from dibs.locks.reentrant import Depth, another_of
from dibs.locks.requests import (
    COMMON,
    AcquireRequest,
    Grant,
    HoldOptions,
    LeaseRules,
    NoOptions,
    refuse_options,
    shown_as,
)
from dibs.locks.transaction import acquire_within, one_try
from dibs.locks.waiting import OnWait, check_on_wait
from dibs.model import (
    MANY,
    Failed,
    Granted,
    Holder,
    Inspect,
    Promise,
    Renew,
    Renewed,
    Revoke,
    Revoked,
    Status,
)
from dibs.process import generation
from dibs.runtime.port import Runtime, TransactionConnection
from dibs.settings import PrimitiveConfig, config_of

PROMISES: frozenset[Promise] = frozenset(get_args(Promise.__value__))
"""Every word that a store may promise, and `require=` may name."""


@lru_cache(maxsize=1)
def _process(number: int) -> str:
    """Name the process of that generation: this one."""
    return f"{gethostname()}/{os.getpid()}"


def this_process() -> str:
    """This process, for people: `host/pid`."""
    return _process(generation.number)


# -- blocks -----------------------------------------------------------------------------------------------


class BlockLease(Protocol):
    """A lease, or several that are held together, in a `with` block."""

    _me: object
    """The task or thread that acquired it."""

    async def _begin(self) -> None:
        """Begin a block, once that is possible."""

    async def _leave(self, exc: BaseException | None) -> None:
        """End a block, whose body raised `exc` or nothing."""


class ReusableContext[HeldT: BlockLease]:
    """A subject of `with` or `async with`, any number of times; it remembers the lease of each block."""

    _entered: dict[object, list[HeldT]]
    """The leases of open blocks, by the task or thread that entered them."""

    def _runtime(self) -> Runtime:
        """The runtime of the caller's side; set by the public classes."""
        raise NotImplementedError

    async def _acquire(self) -> HeldT:
        """Acquire with the options of the object."""
        raise NotImplementedError

    @property
    def _called(self) -> str:
        """The name in messages."""
        raise NotImplementedError

    async def _enter_block(self) -> HeldT:
        """Acquire, and begin a block."""
        lease = await self._acquire()
        await lease._begin()
        return self._remember(lease)

    def _remember(self, lease: HeldT) -> HeldT:
        """Keep the lease until its block ends."""
        mine = self._entered.setdefault(lease._me, [])
        try:
            mine.append(lease)
            return lease
        except BaseException:  # interrupted: no __exit__ will ever take it
            if lease in mine:
                mine.remove(lease)
            raise

    def _take_entered(self) -> HeldT:
        """Return the lease of the innermost block that this task or thread has entered.

        Raises `RuntimeError` if it entered none and several others have: nobody knows whose block this is.
        """
        entered = self._entered
        owners = list(entered)
        if len(owners) > 1:
            owners = self._those_who_may_leave(owners)
        elif not owners:
            raise RuntimeError(f"a block of {self._called} is left that nobody entered")
        owner = owners[-1]  # perhaps another task than entered it, as fixtures do
        leases = entered[owner]
        lease = leases.pop()
        if not leases:
            del entered[owner]
        return lease

    def _those_who_may_leave(self, owners: list[object]) -> list[object]:
        """Return this task or thread if it has entered, or else those owners that have ended."""
        with suppress(
            RuntimeError
        ):  # its event loop is closed: the garbage collector ends the block
            me = self._runtime().me()
            if me in owners:
                return [me]
        over = [each for each in owners if _is_over(each)]
        if not over:
            raise RuntimeError(
                f"a block of {self._called} is left by another task or thread than entered it, and "
                "this object has several such blocks: write `with lock.acquire() as lease:` instead"
            )
        return over


def _is_over(owner: Any) -> bool:
    """The task has returned, or the thread has ended."""
    done = getattr(owner, "done", None)
    return owner is None or (done() if done else not owner.is_alive())


# -- primitives -------------------------------------------------------------------------------------------


class PrimitiveBase[LeaseT: LeaseBase](ReusableContext[LeaseT]):
    """A named resource, and how it is acquired and held.

    Share one among tasks and threads, or make one for each request: the lease has all that is held.
    """

    kind: ClassVar[Kind] = "lock"
    _lease_type: type[LeaseT]
    _config_type: ClassVar[type[PrimitiveConfig]] = LockConfig
    _units: ClassVar[int] = 1
    """Units to acquire, unless another number is given."""
    _rules: LeaseRules = COMMON
    _for_one: ClassVar[bool] = False
    """A nested wait for it can never end, whatever the capacity."""
    _require: frozenset[Promise] = frozenset()
    """Words that the store must promise."""
    _may_await: ClassVar[bool] = True
    """Callbacks can be coroutine functions."""
    _takes: ClassVar[str] = "one name"
    """The arguments by position, in a message."""
    _if_held: ClassVar[str] = (
        "this acquire would wait forever. Pass the lease on, or create every Lock of that name that this "
        "task or thread acquires with reentrant=True"
    )
    """Why a holder cannot wait for it, and what to do."""

    @shown_as("Lock.__init__")
    def __init__(
        self,
        name: str | bytes,
        *more: Never,
        ttl: Duration | Unset = UNSET,
        wait: Duration | Unset | None = UNSET,
        priority: int | Unset = UNSET,
        note: str | Unset = UNSET,
        label: str | Unset = UNSET,
        auto_renew: bool | Unset = UNSET,
        max_hold: Duration | Unset | None = UNSET,
        reentrant: bool | Unset = UNSET,
        lock_delay: Duration | Unset = UNSET,
        detect_deadlocks: bool | Unset = UNSET,
        on_lost: Callable[[LeaseT], object] | None = None,
        on_wait: OnWait | None = None,
        require: Promise | Iterable[Promise] = (),
        client: Any = None,
        env_prefix: str | None = None,
        env_load: bool = True,
        **others: Unpack[NoOptions],
    ) -> None:
        """Describe a lock. The store is first asked when you acquire it.

        Options that you do not give come from the settings, else from the defaults in brackets.

        - `ttl` (30 s): how long the store keeps the lease without renewal.
        - `wait` (None: no limit): how long to wait in the queue; 0: one try.
        - `priority` (0): higher goes first in the queue.
        - `note`, `label` (""): a note, and an addition to the owner's name, for people.
        - `auto_renew` (True): renew in the background while held.
        - `max_hold` (None): stop renewing after this time, whatever the body does.
        - `reentrant` (False): the holder can acquire again.
        - `lock_delay` (0): how long it stays closed after a lease expired.
        - `detect_deadlocks` (True): look for circles of waiters, and raise `Deadlock`.
        - `on_lost`: called with the lease when it is lost.
        - `on_wait`: called with the progress of a wait.
        - `require`: words for what the store must promise, such as `{"durable"}`.
        - `client`: a client, or a store's name; None: the default store.
        - `env_prefix` (`DIBS_LOCK__<NAME>__`): the beginning of its own environment variables.
        - `env_load` (True): read environment variables and the file of settings.
        """
        if more or others:
            refuse_options(f"a {self.kind}", others, PrimitiveBase.__init__, more and self._takes)
        given = (
            *(ttl, wait, priority, note, label),
            *(auto_renew, max_hold, reentrant, lock_delay, detect_deadlocks),
        )
        config = config_of(LockConfig, self.kind, name, given, client, env_prefix, env_load)
        self._describe(name, config, on_lost, require, client, on_wait)

    @classmethod
    def from_config(
        cls,
        name: str | bytes,
        config: LockConfig,
        *,
        on_lost: Callable[[LeaseT], object] | None = None,
        on_wait: OnWait | None = None,
        require: Promise | Iterable[Promise] = (),
        client: Any = None,
    ) -> Self:
        """Make one from a config, without reading the environment."""
        if not isinstance(config, LockConfig):
            raise TypeError(f"config is {config!r}: give a LockConfig")
        self = cls.__new__(cls)
        self._describe(name, config, on_lost, require, client, on_wait)
        return self

    def _describe(
        self,
        name: str | bytes,
        config: LockConfig,
        on_lost: Callable[[LeaseT], object] | None,
        require: Promise | Iterable[Promise],
        client: Any,
        on_wait: OnWait | None = None,
    ) -> None:
        if on_lost is not None and not callable(on_lost):
            raise TypeError(f"on_lost is {on_lost!r}: give a function that takes the lease")
        if on_wait is not None:
            check_on_wait(on_wait, may_await=self._may_await)
        self.key: bytes = key_of(self.kind, name)
        self.name = name
        self.config = config
        self._on_lost = on_lost
        self._on_wait = on_wait
        if require:
            self._require = check_words(require)
        self._client = self._checked_client(client, self._require)
        self._entered = {}
        self._here = ""
        """The process that `_prepared` names as owner."""
        self._prepared: tuple[AcquireRequest, HoldOptions]

    @staticmethod
    def _checked_client(given: Any, require: frozenset[str]) -> Any:
        """Check `client=` and what its store promises; set by the public classes."""
        return given

    @staticmethod
    def _join(rt: Runtime, connection: Any) -> TransactionConnection:
        """The user's own connection as one to the store; set by the public classes."""
        raise NotImplementedError

    @property
    def _capacity(self) -> int:
        return 1

    @property
    def _called(self) -> str:
        return format_key(self.key)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {format_key(self.key)}>"

    # -- the request --------------------------------------------------------------------------------

    def _describe_here(self) -> tuple[AcquireRequest, HoldOptions]:
        """Prepare the request without arguments, and how its lease is held, for this process."""
        config: Any = self.config  # whose durations are in seconds
        process, ttl, units, capacity = this_process(), config.ttl, self._units, self._capacity
        owner = f"{process}/{config.label}" if config.label else process
        priority, note = config.priority, config.note
        delay, detects = config.lock_delay, config.detect_deadlocks
        request = AcquireRequest(
            self.key, owner, ttl, units, capacity, priority, note, delay, detects
        )
        exclusive = capacity == 1 or self._for_one
        renews, most, on_lost = config.auto_renew, config.max_hold, self._on_lost
        options = HoldOptions(
            ttl, owner, units, exclusive, renews, most, on_lost, self._rules, detects
        )
        self._prepared = request, options
        self._here = process  # last: from here on other threads use `_prepared`
        return request, options

    def _request_for(
        self, units: int, priority: int | None, note: str | None
    ) -> tuple[AcquireRequest, HoldOptions]:
        """The request for these arguments. Raises `ValueError`, `TypeError` for wrong ones."""
        prepared = self._prepared if self._here is this_process() else self._describe_here()
        if units == 1 and priority is None and note is None:
            return prepared
        prepared = self._changed_request(units, priority, note)
        if not 1 <= units <= self._capacity:
            raise ValueError(
                f"units is {units}: it must be at least 1, and {format_key(self.key)} has a capacity of "
                f"{self._capacity}"
            )
        return prepared

    def _changed_request(
        self, units: int, priority: int | None, note: str | None
    ) -> tuple[AcquireRequest, HoldOptions]:
        for what, value in (("units", units), ("priority", priority)):
            if value is not None and type(value) is not int:
                raise TypeError(f"{what} is {value!r}: give an int")
        if priority is not None:
            check_priority(priority)
        if not isinstance(note, str | None):
            raise TypeError(f"note is {note!r}: give a text")
        request, options = self._prepared
        request = request._replace(
            units=units,
            priority=request.priority if priority is None else priority,
            note=request.note if note is None else note,
        )
        return request, options._replace(units=units)

    # -- acquiring ----------------------------------------------------------------------------------

    async def _acquire(
        self,
        units: int = 1,
        wait: Duration | Unset | None = UNSET,
        priority: int | None = None,
        note: str | None = None,
        within: Any = None,
        on_wait: OnWait | None = None,
    ) -> LeaseT:
        """Acquire a lease, or another level of the one that this task or thread holds."""
        rt = self._runtime()
        if within is not None:
            if self.config.reentrant:
                raise TypeError(NOT_WITHIN)
            wait = one_try(wait)
        limit: Any = self.config.wait if wait is UNSET else optional_seconds(wait, "wait")  # type: ignore[arg-type]
        me = rt.me()
        own = rt.holding.get(self.key, me)
        waits_for_own = own is not None and self._waits_for_own(
            limit, renewed=own._options.auto_renew
        )
        if own is not None and not waits_for_own:
            again = await self._held_already(rt, me, limit)
            if again is not None:
                return again
        if self._require:
            await self._check_the_store(rt)
        request, options = self._request_for(units, priority, note)
        if waits_for_own:
            request = request._replace(detects=False)
        if on_wait is None:
            on_wait = self._on_wait
        else:
            check_on_wait(on_wait, may_await=self._may_await)
        hook = None
        if hooks.observer is not None:
            hook, (request,) = hooks.begin((request,), limit, me)
        try:
            if within is None:
                grant = await self._attempt(rt, request, on_wait).run(limit)
            else:
                grant = await acquire_within(rt, self._join(rt, within), request)
            lease = self._hold(rt, options, grant, me)
        except BaseException as error:
            if hook is not None:
                hook.end(error)
            if isinstance(error, AcquireTimeout):
                self._check_holders(error.holders)
            raise
        if hook is not None:
            hook.end(None)
        return self._given(lease)

    async def _try(
        self, units: int = 1, priority: int | None = None, note: str | None = None
    ) -> LeaseT | None:
        try:
            return await self._acquire(units, 0, priority, note)
        except AcquireTimeout:
            return None

    def _attempt(
        self, rt: Runtime, request: AcquireRequest, on_wait: OnWait | None
    ) -> AcquireAttempt:
        """The attempt to acquire; `dibs.temporal` has one that its next activity attempt continues."""
        return AcquireAttempt(rt, request, on_wait)

    async def _check_the_store(self, rt: Runtime) -> None:
        """Raises `MissingCapability` if the store can't promise what is required."""
        if not rt.capabilities.asked:
            await rt.ready()
            if not rt.capabilities.asked:
                await rt.call(Inspect(self.key))  # threads connect when they call
        check_promises(self._require, rt.capabilities.names(), "the store")

    def _hold(self, rt: Runtime, options: HoldOptions, grant: Grant, me: object) -> LeaseT:
        """Make a lease of a grant. If that is interrupted, give the grant up."""
        try:
            return self._lease_type(rt, self.key, options, grant, me)
        except BaseException:
            give_up(rt, self.key, grant.id, grant.doubtful)
            raise

    def _given(self, lease: LeaseT) -> LeaseT:
        """Prepare a new lease for its holder."""
        if self.config.reentrant:
            lease._depth = Depth()
        return lease

    def _waits_for_own(self, limit: float | None, *, renewed: bool) -> bool:
        """Whether to wait for a lease of our own task or thread: without renewal it ends by itself."""
        return not renewed and not self.config.reentrant and limit != 0

    async def _held_already(self, rt: Runtime, me: object, limit: float | None) -> LeaseT | None:
        """Acquire again what our task or thread holds, or refuse to; None if that has ended."""
        lease = rt.holding.get(self.key, me)
        if lease is None or not await lease._still_stands():
            return None
        again = self._again(lease) if self.config.reentrant else None
        if again is None and lease._stands:  # it may have ended this very moment
            self._refuse_reentry(limit)
        return again

    def _again(self, held: Any) -> LeaseT | None:
        """Acquire again what our task or thread holds; None if it cannot be shared."""
        again: LeaseT | None = another_of(held, self._on_lost)
        return again

    def _refuse_reentry(self, limit: object) -> None:
        name = format_key(self.key)
        if limit == 0:
            raise AcquireTimeout(f"{name} is held by this task or thread", key=self.key)
        raise Reentrant(
            f"{name} is already held by this task or thread, so {self._if_held}", key=self.key
        )

    def _check_holders(self, holders: tuple[Holder, ...]) -> None:
        """Warn if the holders that an error names contradict the declared capacity."""

    # -- status -------------------------------------------------------------------------------------

    async def _status(self) -> Status:
        return await status_of(await self._ready(), self.key)

    async def _locked(self) -> bool:
        status = await self._status()
        return status.used >= self._capacity or (self._capacity == MANY and status.used > 0)

    async def _revoke(self, reason: str, now: bool) -> int:
        return await revoke(await self._ready(), self.key, reason, now)

    async def _ready(self) -> Runtime:
        """The runtime, connected."""
        rt = self._runtime()
        if not rt.is_ready:
            await rt.ready()
        return rt


NOT_WITHIN = (
    "within= is for a lease that stands and falls with one transaction, and a reentrant one is shared: "
    "acquire it without within=, or make it without reentrant=True"
)


def check_words(require: Promise | Iterable[Promise]) -> frozenset[Promise]:
    """The words of `require=`. Raises `ValueError` for one that no store promises."""
    required: frozenset[Promise] = frozenset({require} if isinstance(require, str) else require)
    unknown = sorted(repr(word) for word in required - PROMISES)
    if unknown:
        raise ValueError(
            f"require names {', '.join(unknown)}, which no store promises: "
            f"the words are {', '.join(sorted(PROMISES))}"
        )
    return required


def check_promises(required: Collection[str], promised: Collection[str], where: str) -> None:
    """Raises `MissingCapability` for what is required and not promised."""
    missing = sorted(set(required) - set(promised))
    if missing:
        raise MissingCapability(
            f"{where} can't promise {', '.join(missing)}: it promises {', '.join(sorted(promised))}"
        )


# -- by key -----------------------------------------------------------------------------------------------


async def status_of(rt: Runtime, key: bytes) -> Status:
    """Return the holders and waiters of a key."""
    reply = (await rt.call(Inspect(key))).reply
    if isinstance(reply, Status):
        own, found = rt.keeper.held(key), reply
        return replace(found, mine=tuple(h for h in found.holders if h.lease in own))
    raise unexpected(reply, key)


async def revoke(rt: Runtime, key: bytes, reason: str, now: bool) -> int:
    """Refuse further renewals to all holders; return how many there were."""
    reply = (await rt.call(Revoke(key, None, reason, now))).reply
    if isinstance(reply, Revoked):
        return reply.count
    raise unexpected(reply, key)


async def attach[LeaseT: LeaseBase](
    rt: Runtime, handle: str, lease_type: Callable[[str], type[LeaseT]]
) -> LeaseT:
    """Take over a detached lease, if the store still has it; its type follows from its kind."""
    key, options, grant = unpack_handle(handle)
    answer = await rt.call(Renew(key, grant.id, options.ttl))
    reply = answer.reply
    if isinstance(reply, Failed):
        raise unexpected(reply, key)
    if not isinstance(reply, Renewed | Granted):
        raise LeaseLost(
            f"the detached lease on {format_key(key)} (token {grant.token}) has ended", key=key
        )
    grant = grant._replace(since=answer.sent, deadline=answer.sent + trusted(reply.ttl))
    kind, _ = split_key(key)
    return lease_type(kind)(rt, key, options, grant, rt.me())
