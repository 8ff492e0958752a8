"""A readers-writer lock: many readers or one writer.

It is one key without slot numbers. A reader takes one unit, a writer takes all. So the queue serves both in
their order of arrival: later readers queue behind a writer that waits.
"""

import logging
from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Never, Self, Unpack

from dibs.config import LockConfig, optional_seconds
from dibs.core.names import Kind, fingerprint
from dibs.errors import AcquireTimeout, BackendUnavailable, Deadlock
from dibs.locks.acquire import AcquireAttempt, AttemptStopped, StopSignal
from dibs.locks.base import PrimitiveBase
from dibs.locks.lease import LeaseBase, give_up, pack_handle, tombstone
from dibs.locks.messages import format_key, not_acquired, raise_if_busy, unexpected
from dibs.locks.reentrant import check_single
from dibs.locks.requests import (
    AcquireRequest,
    ClientLockOptions,
    Grant,
    HoldOptions,
    new_id,
    shown_as,
)
from dibs.locks.waiting import OnWait
from dibs.model import MANY, Command, Granted, Holder, Lost, Promise, Refused, Release, Resize
from dibs.runtime.port import Runtime, TimedReply

log: logging.Logger = logging.getLogger("dibs")

READER, WRITER = 1, MANY
"""Units that each takes."""

NEVER = -1

FIRST_IN_LINE = 1 << 30
"""Priority of an upgrade: before everybody who waits to acquire."""

SHORTEST_WAIT = 0.001
"""Seconds that an upgrade queues at least, where 0 would be a try."""

SOON = 0.001
"""Seconds until the keeper sends a Resize whose outcome is unknown."""

PAUSE = 0.1
"""Seconds between two tries to grow while the store is away."""


class RWLeaseBase(LeaseBase):
    """A lease of a readers-writer lock, on one unit or on all.

    It is for writing exactly while the number of its last Resize is that of a granted change to all units.
    So it never writes on more than the store has granted, whatever other tasks ask for meanwhile. After a
    Resize of unknown outcome the keeper asks for one unit, in place of a renewal, until the store answers.
    """

    __slots__ = ("_asked", "_outgrown", "_settling", "_writing")

    def __init__(
        self, rt: Runtime, key: bytes, options: HoldOptions, grant: Grant, me: object
    ) -> None:
        self._writing = grant.seq if options.units == MANY else NEVER
        """Number of the Resize that gave it all units; 0: it was acquired so."""
        self._settling: Resize | None = None
        """The Resize that the keeper has to send."""
        self._asked: Resize | None = None
        """The Resize that the keeper has sent, while it waits for the answer."""
        self._outgrown: tuple[int, float] | None = None
        """The token before the newest upgrade, and when that was answered."""
        super().__init__(rt, key, options, grant, me)

    @property
    def mode(self) -> Literal["read", "write"]:
        """The current mode. It stays when the lease is lost."""
        return "write" if self._writing == self._seq else "read"

    def _handle(self) -> str:
        units = MANY if self.mode == "write" else 1
        return pack_handle(self, self._options._replace(units=units))

    async def _upgrade(self, wait: Any) -> None:
        wait = optional_seconds(wait, "wait")
        self._check_may_change("upgraded")
        if self.mode == "read":
            await upgrade(self._rt, self, wait)
            self.ensure()

    async def _downgrade(self) -> None:
        self._check_may_change("downgraded")
        if self.mode == "read":
            return
        try:
            await self._resize(1)  # from here on nobody believes that it writes
        except BackendUnavailable as error:  # or the key is busy
            log.warning(
                "the store did not confirm the downgrade of %s; retrying in the background: %s",
                format_key(self.key),
                error,
            )

    def _check_may_change(self, what: str) -> None:
        self.ensure()
        check_single(self, what)

    async def _grow(self) -> Refused | None:
        """Ask the store once for all units; None once they are ours."""
        number = self._seq + 1
        refused = await self._resize(MANY)
        if refused is None:
            self._writing = number  # last: until here it is for reading
        return refused

    # -- another number of units --------------------------------------------------------------------

    async def _resize(self, units: int) -> Refused | None:
        """Ask the store once for that many units; None once it has granted them.

        Each Resize has a number, and the store obeys the newest only. If the outcome is unknown the store
        may have more taken than the holder believes, never less. Raises `LeaseLost`, `BackendUnavailable`.
        """
        change = self._next_resize(units)
        try:
            reply = (await self._rt.call(change)).reply
            if not isinstance(reply, Granted | Refused | Lost):
                raise unexpected(reply, self.key)
        except BaseException:
            self._settle(1)
            raise
        if isinstance(reply, Refused):
            return reply
        if isinstance(reply, Lost):
            self._lose(reply.reason, self._detail_of(reply))
            self.ensure()
        elif reply.token != self.token:
            self._outgrown = self.token, self._rt.now()
            self.token: int = reply.token
        return None

    def _next_resize(self, units: int) -> Resize:
        self._seq = seq = self._seq + 1
        self._settling = None  # an older one is void with this
        return Resize(self.key, self._id, units, seq)

    def _settle(self, units: int) -> None:
        """Have the keeper ask for that many units until the store has answered."""
        self._settling = self._next_resize(units)
        if self._end is None:
            self._renew_soon()

    def _renew_soon(self) -> None:
        now = self._rt.now()
        self._renew_at = now + SOON
        self._schedule(now, 0.0)

    @property
    def _wants_renewal(self) -> bool:
        return self._settling is not None or super()._wants_renewal

    def _renewal(self) -> Command:
        self._asked = self._settling
        return super()._renewal() if self._asked is None else self._asked

    def _renewed(self, answer: TimedReply) -> None:
        asked, self._asked = self._asked, None
        if asked is None or not isinstance(answer.reply, Granted | Refused):
            super()._renewed(answer)
            is_due = asked is None and self._settling is not None
        else:
            self._renewing = False
            if self._settling is asked:
                self._settling = None
            is_due = True  # the Resize took the place of a renewal
        if is_due and self._end is None:
            self._renew_soon()

    def _is_ours(self, answer: TimedReply) -> bool:
        """Whether it is the grant that we know, or the one before an upgrade that was answered later."""
        if super()._is_ours(answer):
            return True
        if self._outgrown is None:
            return False
        token, upgraded_at = self._outgrown
        return answer.reply.token == token and answer.sent < upgraded_at  # type: ignore[union-attr]


async def upgrade(rt: Runtime, lease: RWLeaseBase, wait: float | None) -> None:
    """Make a reader the writer within `wait` seconds (None: no limit; 0: one try).

    It queues before everybody else for all units but its own. The store grants them, and notifies it, when
    the other readers have left. Then it gives them back and grows; meanwhile a second position at the head
    of the queue keeps newcomers out. Raises `AcquireTimeout`, `Deadlock`, `LeaseLost`,
    `BackendUnavailable`.
    """
    until = inf if wait is None else rt.now() + wait
    refused: Refused | None = None
    try:
        refused = await lease._grow()
        if refused is None:
            return
        if wait == 0 or rt.now() >= until:
            raise _timed_out(lease, refused.holders, refused.recheck_in, wait)
    except BackendUnavailable:
        if wait == 0 or rt.now() >= until:
            raise
    stop = StopSignal()
    lease._signal_end(stop)
    try:
        grown = False
        while not grown:  # twice if somebody came in, as after a long outage
            others = await _others_gone(rt, lease, until, wait, stop)
            grown = await _grow_alone(rt, lease, others, until)
    except Deadlock as error:
        error.holders = error.holders or (refused.holders if refused is not None else ())
        raise
    finally:
        lease._signal_no_more(stop)


async def _others_gone(
    rt: Runtime, lease: RWLeaseBase, until: float, wait: float | None, stop: StopSignal
) -> Grant:
    """Wait for all other readers to leave; return the grant of their units. The lease's loss is `stop`."""
    try:
        left = None if wait is None else max(until - rt.now(), SHORTEST_WAIT)
        return await AcquireAttempt(rt, _request(lease), stop=stop).run(left)
    except AcquireTimeout as error:
        raise _timed_out(lease, error.holders, error.retry_after, wait) from None
    except AttemptStopped:
        lease.ensure()
        raise


async def _grow_alone(rt: Runtime, lease: RWLeaseBase, others: Grant, until: float) -> bool:
    """Exchange the grant of the others' units for all units; return whether the store has agreed."""
    key, place = lease.key, new_id()
    command = _request(lease)._replace(held=0).command(place, "", queue=True)
    until = min(until, rt.now() + rt.connect_timeout)
    doubtful = others.doubtful
    try:
        while True:
            try:  # each of these can be repeated
                raise_if_busy((await rt.call(command)).reply, key)
                leave = Release(key, others.id, tombstone=tombstone(rt, doubtful))
                raise_if_busy((await rt.call(leave)).reply, key)
                refused = await lease._grow()
                leave = Release(key, place, tombstone=tombstone(rt, doubtful))
                raise_if_busy((await rt.call(leave)).reply, key)
                return refused is None
            except BackendUnavailable:
                doubtful = True
                if lease.mode == "write" or rt.now() >= until:
                    raise
            await rt.signal().wait(PAUSE)
    except BaseException as error:
        give_up(rt, key, others.id, doubtful=True)
        give_up(rt, key, place, doubtful=True)
        if lease.mode == "write" and isinstance(error, BackendUnavailable):
            return True  # it has grown, and leaves the queue in the background
        raise


def _request(lease: RWLeaseBase) -> AcquireRequest:
    options = lease._options
    return AcquireRequest(
        lease.key,
        options.owner,
        options.ttl,
        MANY,
        MANY,
        FIRST_IN_LINE,
        "waits to upgrade the lease that it reads under",
        detects=options.detects,
        held=1,
        waiter_ttl=options.ttl,  # so it is gone no later than the lease of one that has died
    )


def _timed_out(
    lease: RWLeaseBase, holders: tuple[Holder, ...], retry_after: float | None, wait: float | None
) -> AcquireTimeout:
    own = fingerprint(lease._id)
    others = tuple(holder for holder in holders if holder.lease != own)
    gave_up = f"gave up upgrading after {wait:g} s" if wait else ""
    return not_acquired(lease.key, others, gave_up, retry_after=retry_after)


class SideBase[LeaseT: RWLeaseBase](PrimitiveBase[LeaseT]):
    """A side of the lock: for reading or for writing."""

    kind: ClassVar[Kind] = "rwlock"
    # A reader must not wait to read again: a writer between the two would wait for its first lease.
    _for_one: ClassVar[bool] = True
    _mode: ClassVar[Literal["read", "write"]]

    @property
    def _capacity(self) -> int:
        return MANY

    def _changed_request(
        self, units: int, priority: int | None, note: str | None
    ) -> tuple[AcquireRequest, HoldOptions]:
        if units != 1:
            raise ValueError(f"units is {units!r}: a reader takes one, a writer all; leave it out")
        return super()._changed_request(self._units, priority, note)

    def _again(self, held: Any) -> LeaseT | None:
        return super()._again(held) if getattr(held, "mode", None) == self._mode else None

    async def _locked(self) -> bool:
        return (await self._status()).used + self._units > MANY


class ReadSideBase[LeaseT: RWLeaseBase](SideBase[LeaseT]):
    """For reading, beside other readers."""

    _units: ClassVar[int] = READER
    _mode: ClassVar[Literal["read", "write"]] = "read"
    _if_held: ClassVar[str] = (
        "waiting for it may never end: pass the lease on instead of acquiring it again"
    )


class WriteSideBase[LeaseT: RWLeaseBase](SideBase[LeaseT]):
    """For writing, alone."""

    _units: ClassVar[int] = WRITER
    _mode: ClassVar[Literal["read", "write"]] = "write"
    _if_held: ClassVar[str] = (
        "waiting for it may never end: upgrade() the lease that is held, or pass it on"
    )


class RWLockBase[ReadT: PrimitiveBase[Any], WriteT: PrimitiveBase[Any], LeaseT: LeaseBase]:
    """A readers-writer lock on both sides; `read()` and `write()` are acquired."""

    kind: ClassVar[Kind] = "rwlock"
    _reading: ReadT
    _writing: WriteT
    _read_type: type[ReadT]
    _write_type: type[WriteT]

    @shown_as("RWLock.__init__")
    def __init__(
        self, name: str | bytes, *more: Never, **options: Unpack[ClientLockOptions[LeaseT]]
    ) -> None:
        """Describe both sides, with the options of a `Lock`."""
        self._describe_sides(self._read_type(name, *more, **options))

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
        self = cls.__new__(cls)
        more: dict[str, Any] = {"on_lost": on_lost, "on_wait": on_wait, "require": require}
        self._describe_sides(cls._read_type.from_config(name, config, client=client, **more))
        return self

    def _describe_sides(self, reading: ReadT) -> None:
        self._reading = reading
        self._writing = self._write_type.from_config(
            reading.name,
            reading.config,
            on_lost=reading._on_lost,
            on_wait=reading._on_wait,
            require=reading._require,
            client=reading._client,
        )

    @property
    def name(self) -> str | bytes:
        """The name."""
        return self._reading.name

    @property
    def key(self) -> bytes:
        """The kind and the name."""
        return self._reading.key

    @property
    def config(self) -> LockConfig:
        """The options, shared by both sides."""
        return self._reading.config

    @property
    def _client(self) -> Any:
        return self._reading._client

    @shown_as("RWLock.read")
    def read(self) -> ReadT:
        """The side for reading, with any number of readers and no writer. Use it like a `Lock`."""
        return self._reading

    @shown_as("RWLock.write")
    def write(self) -> WriteT:
        """The side for writing, alone. Use it like a `Lock`."""
        return self._writing

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {format_key(self.key)}>"

    if not TYPE_CHECKING:  # it is an error to type checkers, and help at run time

        def __enter__(self) -> Any:
            raise TypeError(f"say what for: `with {_example(self)}.read()` or `….write()`")

        def __exit__(self, *about: object) -> None: ...

        async def __aenter__(self) -> Any:
            raise TypeError(f"say what for: `async with {_example(self)}.read()` or `….write()`")

        async def __aexit__(self, *about: object) -> None: ...


def _example(lock: RWLockBase[Any, Any, Any]) -> str:
    return f"{type(lock).__name__}({lock.name!r})"
