"""What all primitives share: a description of what is wanted, without state of its own."""

import os
from collections.abc import Callable, Collection, Iterable
from socket import gethostname
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from leasehold.config import (
    UNSET,
    Duration,
    LockConfig,
    Unset,
    check_priority,
    configured,
    optional_seconds,
)
from leasehold.core.names import Kind, key_of
from leasehold.errors import AcquireTimeout, MissingCapability, Reentrant
from leasehold.model import MANY, Status
from leasehold.primitives import admin
from leasehold.primitives.acquire import Acquiring, Ask, Grant
from leasehold.primitives.lease import LeaseBase
from leasehold.primitives.telling import key_shown
from leasehold.primitives.terms import Terms
from leasehold.runtime.port import Runtime

if TYPE_CHECKING:
    from leasehold.primitives.joining import Way

NO_TIMEOUT = (
    "timeout= says too little: did you mean wait= (how long to queue) or "
    "ttl= (how long the store keeps it)?"
)

_hosts: dict[int, str] = {}


class Block(Protocol):
    """Whoever keeps the lease of a `with` block."""

    lease: Any


def _here() -> str:
    """This process, for people: `host/pid`."""
    pid = os.getpid()
    here = _hosts.get(pid)
    if here is None:
        _hosts.clear()
        here = _hosts[pid] = f"{gethostname()}/{pid}"
    return here


class PrimitiveBase[LeaseT: LeaseBase]:
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
        on_lost: Callable[[Any], object] | None = None,
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
        }
        config = configured(self.kind, name, given, env_prefix=env_prefix, env_load=env_load)
        self._describe(name, config, on_lost, require, client)

    @classmethod
    def from_config(
        cls,
        name: str | bytes,
        config: LockConfig,
        *,
        on_lost: Callable[[Any], object] | None = None,
        require: Iterable[str] = (),
        client: Any = None,
    ) -> Self:
        """Describe it by a config; no environment is read."""
        self = cls.__new__(cls)
        self._describe(name, config, on_lost, require, client)
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
        self._cohort = config.cohort if self._can_be_shared else None
        self._here = ""
        self._wish: tuple[Ask, Terms]
        self._entered: dict[object, list[LeaseT]] = {}
        if client is not None and not hasattr(client, "hub"):
            raise TypeError(f"client= is {client!r}: give what connect() returned")
        if self._require and client is not None:
            _check(self._require, client.capabilities.names(), client.url)

    @property
    def _capacity(self) -> int:
        return 1

    def _runtime(self) -> Runtime:
        """The way to the store from where we are; set by the faces."""
        raise NotImplementedError

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
    ) -> LeaseT:
        rt = self._runtime()
        if within is not None:
            from leasehold.primitives.joining import one_try

            wait = one_try(wait)
        patience = self._wait if wait is UNSET else optional_seconds(wait, "wait")  # type: ignore[arg-type]
        me = rt.me()
        held = rt.holding.get((self.key, me))
        if held is not None and (lease := held()) is not None and (await lease._still_stands()):
            self._refuse_reentry(patience)
        if self._require:
            _check(self._require, rt.capabilities.names(), "the store")
        ask, terms = self._wish if self._here is _here() else self._describe_here()
        if units != 1 or priority is not None or note is not None:
            ask, terms = self._another_wish(units, priority, note)
            if not 1 <= units <= self._capacity:
                raise ValueError(
                    f"units is {units}: {key_shown(self.key)} has 1 to {self._capacity}"
                )
        if within is not None:
            grant = await self._granted_within(rt, ask, within)
        elif self._cohort is not None:
            return await self._acquire_in_cohort(rt, ask, terms, me, patience)
        else:
            grant = await Acquiring(rt, ask).run(patience)
        try:
            return self._lease_type(rt, self.key, terms, grant, me)
        except BaseException:
            rt.keeper.abandon(self.key, grant.id, 0.0)
            raise

    async def _acquire_in_cohort(
        self, rt: Runtime, ask: Ask, terms: Terms, me: object, patience: float | None
    ) -> LeaseT:
        from leasehold.primitives.cohort_member import Member  # only who asks for it pays for it

        return await Member(rt, self._lease_type, ask, terms, me).acquire(patience)

    async def _granted_within(self, rt: Runtime, ask: Ask, connection: Any) -> Grant:
        from leasehold.primitives.joining import acquire_within

        return await acquire_within(rt, self._join(rt, connection), ask)

    def _describe_here(self) -> tuple[Ask, Terms]:
        """What is asked for by default, and how it is held, from this process on."""
        config, here = self.config, _here()
        owner = f"{here}/{config.label}" if config.label else here
        capacity, ttl, units = self._capacity, self._ttl, self._units
        ask = Ask(
            self.key, owner, ttl, units, capacity, config.priority, config.note, self._cohort or 1
        )
        hold, exclusive = self._max_hold, capacity == 1 or self._for_one
        renews, on_lost = config.auto_renew, self._on_lost
        terms = Terms(ttl, owner, units, exclusive, renews, hold, on_lost, self._more)
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
            "end: pass the lease on instead of acquiring it again",
            key=self.key,
        )

    async def _try(
        self, units: int = 1, priority: int | None = None, note: str | None = None
    ) -> LeaseT | None:
        try:
            return await self._acquire(units, 0, priority, note)
        except AcquireTimeout:
            return None

    # -- with ---------------------------------------------------------------------------------------

    async def _enter(self, block: Block | None) -> LeaseT:
        """Acquire and begin a block; where `block` is None its lease is kept here meanwhile."""
        lease = await self._acquire()
        lease._enter()
        if block is not None:
            block.lease = lease
            return lease
        return self._remember(lease)

    def _remember(self, lease: LeaseT) -> LeaseT:
        """Keep the lease of a block that is entered by hand."""
        mine = self._entered.setdefault(lease._me, [])
        try:
            mine.append(lease)
            return lease
        except BaseException:  # interrupted: no __exit__ will ever take it out
            if lease in mine:
                mine.remove(lease)
            raise

    def _take_entered(self) -> LeaseT:
        """The lease of the innermost block that our task or thread has entered by hand."""
        entered: dict[object, list[LeaseT]] = self._entered
        try:
            me = self._runtime().me()
        except RuntimeError:
            me = None  # its event loop has gone, and the block is left by the garbage collector
        if me not in entered:  # left by another task than entered it, as fixtures do
            if not entered:
                raise RuntimeError(f"a block of {key_shown(self.key)} is left that nobody entered")
            me = list(entered)[-1]
        leases = entered[me]
        lease = leases.pop()
        if not leases:
            del entered[me]
        return lease

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


def _check(required: Collection[str], promised: Collection[str], where: str) -> None:
    missing = sorted(set(required) - set(promised))
    if missing:
        raise MissingCapability(
            f"{where} can't promise {', '.join(missing)}: it promises {', '.join(sorted(promised))}"
        )
