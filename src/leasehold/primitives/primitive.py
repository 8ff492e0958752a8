"""What all primitives share: a description of what is wanted, without state of its own."""

import os
from collections.abc import Callable, Collection, Iterable
from socket import gethostname
from typing import TYPE_CHECKING, Any, ClassVar, Self

from leasehold.config import (
    UNSET,
    Duration,
    LockConfig,
    Unset,
    check_priority,
    optional_seconds,
)
from leasehold.core.names import Kind, key_of
from leasehold.errors import AcquireTimeout, MissingCapability, Reentrant
from leasehold.model import MANY, Status
from leasehold.primitives import admin
from leasehold.primitives.acquire import Acquiring, Ask, Grant
from leasehold.primitives.entering import Entering
from leasehold.primitives.lease import LeaseBase
from leasehold.primitives.telling import key_shown
from leasehold.primitives.terms import Terms
from leasehold.primitives.watching import OnWait, check_on_wait
from leasehold.runtime.port import Runtime
from leasehold.settings import configured

if TYPE_CHECKING:
    from leasehold.primitives.joining import Way

NO_TIMEOUT = (
    "timeout= says too little: did you mean wait= (how long to queue) or "
    "ttl= (how long the store keeps it)?"
)

NOT_WITHIN = (
    "within= is for a lease that stands and falls with one transaction, and a reentrant one is shared: "
    "acquire it without within=, or make it without reentrant=True"
)

NO_CLIENT = "client= is {!r}: give what connect() returned, or the name of a store"

_hosts: dict[int, str] = {}


def _here() -> str:
    """This process, for people: `host/pid`."""
    pid = os.getpid()
    here = _hosts.get(pid)
    if here is None:
        _hosts.clear()
        here = _hosts[pid] = f"{gethostname()}/{pid}"
    return here


class PrimitiveBase[LeaseT: LeaseBase](Entering[LeaseT]):
    """A named resource and how it is to be acquired.

    Share one among tasks and threads, or make one for each request: whatever is held lives in the
    lease.
    """

    kind: ClassVar[Kind]
    _can_be_shared: ClassVar[bool] = False
    """A hold can be passed on within the process: there is one at a time, and all are alike."""
    _units: ClassVar[int] = 1
    """So many are taken unless another number is asked for."""
    _more: Any = None
    """What its leases have to know besides the usual terms."""
    _for_one: ClassVar[bool] = False
    """No task or thread may wait for it twice, whatever its capacity."""
    _may_await: ClassVar[bool] = True
    """Its callbacks may be coroutine functions."""
    _on_wait: OnWait | None = None
    _lease_type: type[LeaseT]

    def __init__(
        self,
        name: str | bytes,
        *,
        ttl: Duration | Unset = UNSET,
        wait: Duration | Unset | None = UNSET,
        priority: int | Unset = UNSET,
        note: str | Unset = UNSET,
        label: str | Unset = UNSET,
        auto_renew: bool | Unset = UNSET,
        max_hold: Duration | Unset | None = UNSET,
        cohort: int | Unset | None = UNSET,
        reentrant: bool | Unset = UNSET,
        lock_delay: Duration | Unset = UNSET,
        detect_deadlocks: bool | Unset = UNSET,
        on_lost: Callable[[Any], object] | None = None,
        on_wait: OnWait | None = None,
        require: Iterable[str] = (),
        client: Any = None,
        env_prefix: str | None = None,
        env_load: bool = True,
        timeout: Unset = UNSET,
    ) -> None:
        if timeout is not UNSET:
            raise TypeError(NO_TIMEOUT)
        if cohort is not UNSET and cohort is not None and not self._can_be_shared:
            raise TypeError(f"cohort= is for locks, and this is a {self.kind}")
        given = {
            "ttl": ttl,
            "wait": wait,
            "priority": priority,
            "note": note,
            "label": label,
            "auto_renew": auto_renew,
            "max_hold": max_hold,
            "cohort": cohort,
            "reentrant": reentrant,
            "lock_delay": lock_delay,
            "detect_deadlocks": detect_deadlocks,
        }
        config = configured(self.kind, name, given, env_prefix=env_prefix, env_load=env_load)
        self._describe(name, config, on_lost, require, client)
        self._watch_by(on_wait)

    @classmethod
    def from_config(
        cls,
        name: str | bytes,
        config: LockConfig,
        *,
        on_lost: Callable[[Any], object] | None = None,
        on_wait: OnWait | None = None,
        require: Iterable[str] = (),
        client: Any = None,
    ) -> Self:
        """Describe it by a config; no environment is read."""
        self = cls.__new__(cls)
        self._describe(name, config, on_lost, require, client)
        self._watch_by(on_wait)
        return self

    def _describe(
        self,
        name: str | bytes,
        config: LockConfig,
        on_lost: Callable[[Any], object] | None,
        require: Iterable[str],
        client: Any,
    ) -> None:
        self.key = key_of(self.kind, name)
        self.name = name
        self.config = config
        self._on_lost = on_lost
        self._require = frozenset({require} if isinstance(require, str) else require)
        self._client = client
        # LockConfig has made them seconds
        self._ttl: float = config.ttl  # type: ignore[assignment]
        self._wait: float | None = config.wait  # type: ignore[assignment]
        self._max_hold: float | None = config.max_hold  # type: ignore[assignment]
        self._lock_delay: float = config.lock_delay  # type: ignore[assignment]
        self._cohort = config.cohort if self._can_be_shared else None
        self._reentrant = config.reentrant
        self._here = ""
        self._wish: tuple[Ask, Terms]
        self._entered = {}
        if client is not None and not hasattr(client, "hub"):
            raise TypeError(NO_CLIENT.format(client))
        if self._require and client is not None:
            check_promises(self._require, client.capabilities.names(), client.url)

    def _watch_by(self, on_wait: OnWait | None) -> None:
        """Have that called while an acquire waits."""
        if on_wait is not None:
            check_on_wait(on_wait, may_await=self._may_await)
            self._on_wait = on_wait

    @property
    def _capacity(self) -> int:
        return 1

    @property
    def _called(self) -> str:
        return key_shown(self.key)

    @staticmethod
    def _join(rt: Runtime, connection: Any) -> "Way":
        """The way to the store by the user's own connection; set by the faces."""
        raise NotImplementedError

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
        rt = self._runtime()
        if within is not None:
            from leasehold.primitives.joining import one_try

            wait = one_try(wait)
            if self._reentrant:
                raise TypeError(NOT_WITHIN)
        patience = self._wait if wait is UNSET else optional_seconds(wait, "wait")  # type: ignore[arg-type]
        me = rt.me()
        held = rt.holding.get((self.key, me))
        if held is not None and (lease := held()) is not None and (await lease._still_stands()):
            again = self._again(lease) if self._reentrant else None
            if again is not None:
                return again
            if lease._stands:  # it may have ended this very moment
                self._refuse_reentry(patience)
        if self._require:
            check_promises(self._require, rt.capabilities.names(), "the store")
        ask, terms = self._wish if self._here is _here() else self._describe_here()
        if units != 1 or priority is not None or note is not None:
            ask, terms = self._another_wish(units, priority, note)
            if not 1 <= units <= self._capacity:
                raise ValueError(
                    f"units is {units}: {key_shown(self.key)} has 1 to {self._capacity}"
                )
        if on_wait is not None:
            check_on_wait(on_wait, may_await=self._may_await)
        else:
            on_wait = self._on_wait
        if within is not None:
            grant = await self._granted_within(rt, ask, within)
        elif self._cohort is not None:
            hold = await self._acquire_in_cohort(rt, ask, terms, me, patience, on_wait)
            return self._counted(hold) if self._reentrant else hold
        else:
            grant = await Acquiring(rt, ask, on_wait).run(patience)
        try:
            hold = self._lease_type(rt, self.key, terms, grant, me)
        except BaseException:
            rt.keeper.abandon(self.key, grant.id, 0.0)
            raise
        return self._counted(hold) if self._reentrant else hold

    def _counted(self, hold: LeaseT) -> LeaseT:
        """The first lease of a hold that may be acquired again."""
        from leasehold.primitives.reentry import first_of  # only who asks for it pays for it

        return first_of(hold, self._on_lost)

    def _again(self, held: Any) -> LeaseT | None:
        """One more lease of what our task or thread holds; None if that is not to be had."""
        from leasehold.primitives.reentry import another_of

        again: LeaseT | None = another_of(held, self._on_lost)
        return again

    async def _acquire_in_cohort(
        self,
        rt: Runtime,
        ask: Ask,
        terms: Terms,
        me: object,
        patience: float | None,
        on_wait: OnWait | None,
    ) -> LeaseT:
        from leasehold.primitives.cohort_member import Member  # only who asks for it pays for it

        return await Member(rt, self._lease_type, ask, terms, me, on_wait).acquire(patience)

    async def _granted_within(self, rt: Runtime, ask: Ask, connection: Any) -> Grant:
        from leasehold.primitives.joining import acquire_within

        return await acquire_within(rt, self._join(rt, connection), ask)

    def _describe_here(self) -> tuple[Ask, Terms]:
        """What is asked for by default, and how it is held, from this process on."""
        config, here = self.config, _here()
        owner = f"{here}/{config.label}" if config.label else here
        capacity, ttl, units = self._capacity, self._ttl, self._units
        priority, note, tokens = config.priority, config.note, self._cohort or 1
        delay, detects = self._lock_delay, config.detect_deadlocks
        ask = Ask(self.key, owner, ttl, units, capacity, priority, note, tokens, 0, delay, detects)
        hold, exclusive = self._max_hold, capacity == 1 or self._for_one
        # each lease of a hold that is shared has an `on_lost` of its own
        renews, on_lost = config.auto_renew, None if self._reentrant else self._on_lost
        terms = Terms(ttl, owner, units, exclusive, renews, hold, on_lost, self._more, detects)
        self._wish = ask, terms
        self._here = here  # last, as it tells other threads, too, that the wish is there
        return ask, terms

    def _another_wish(
        self, units: int, priority: int | None, note: str | None
    ) -> tuple[Ask, Terms]:
        for what, value in (("units", units), ("priority", priority)):
            if value is not None and type(value) is not int:
                raise TypeError(f"{what} is {value!r}: give an int")
        if priority is not None:
            check_priority(priority)
        if not isinstance(note, str | None):
            raise TypeError(f"note is {note!r}: give a text")
        ask, terms = self._wish
        ask = ask._replace(
            units=units,
            priority=ask.priority if priority is None else priority,
            note=ask.note if note is None else note,
        )
        return ask, terms._replace(units=units)

    def _refuse_reentry(self, patience: object) -> None:
        name = key_shown(self.key)
        if patience == 0:
            raise AcquireTimeout(f"{name} is held by this very task or thread", key=self.key)
        raise Reentrant(
            f"{name} is already held by this very task or thread, so waiting for it would never "
            "end: pass the lease on instead of acquiring it again, or make every Lock of that name "
            "that this task or thread acquires with reentrant=True",
            key=self.key,
        )

    def _look_at(self, refusal: AcquireTimeout) -> None:
        """Who is in the way may tell something that the user should know."""

    async def _try(
        self, units: int = 1, priority: int | None = None, note: str | None = None
    ) -> LeaseT | None:
        try:
            return await self._acquire(units, 0, priority, note)
        except AcquireTimeout:
            return None

    # -- seeing -------------------------------------------------------------------------------------

    async def _status(self) -> Status:
        rt = self._runtime()
        if not rt.is_ready:
            await rt.ready()
        return await admin.status(rt, self.key)

    async def _locked(self) -> bool:
        status = await self._status()
        taken = sum(holder.units for holder in status.holders)
        return taken >= self._capacity or (self._capacity == MANY and taken > 0)

    async def _revoke(self, reason: str, now: bool) -> int:
        rt = self._runtime()
        if not rt.is_ready:
            await rt.ready()
        return await admin.revoke(rt, self.key, reason, now)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {key_shown(self.key)}>"


def check_promises(required: Collection[str], promised: Collection[str], where: str) -> None:
    """Raises `MissingCapability` for what is required and not promised."""
    missing = sorted(set(required) - set(promised))
    if missing:
        raise MissingCapability(
            f"{where} can't promise {', '.join(missing)}: it promises {', '.join(sorted(promised))}"
        )
