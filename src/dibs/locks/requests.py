"""Requests and grants, how leases are held, the options of constructors, and messages for wrong options.

`refuse_options` knows what other libraries call our options.
"""

import os
from base64 import urlsafe_b64encode
from collections.abc import Callable, Coroutine, Iterable, Mapping
from math import inf
from typing import Any, NamedTuple, NoReturn, Protocol, Self, TypedDict, overload

from dibs.config import Duration, Unset
from dibs.core.timing import trusted
from dibs.errors import AcquireTimeout
from dibs.locks.messages import LossReason
from dibs.locks.waiting import Waiting
from dibs.model import Acquire, Granted, Promise
from dibs.settings import closest

BYTES = 18  # 144 bits are a whole number of base64 letters
LETTERS = 24
DRAWN = 64

_drawn: list[str] = []


def new_id() -> str:
    """An id that nobody can guess: the capability to renew and release one lease."""
    try:
        return _drawn.pop()
    except IndexError:
        text = urlsafe_b64encode(os.urandom(BYTES * DRAWN)).decode()
        fresh = [text[at : at + LETTERS] for at in range(0, len(text), LETTERS)]
        mine = fresh.pop()
        _drawn.extend(fresh)
        return mine


os.register_at_fork(after_in_child=_drawn.clear)  # ids that the parent may still use


MIN_WAITER_TTL = 30.0
"""Seconds that the store keeps a silent waiter in the queue, also if its ttl is shorter."""


class AcquireRequest(NamedTuple):
    """The units to acquire, for which owner, and how to wait for them."""

    key: bytes
    owner: str
    ttl: float
    units: int = 1
    capacity: int = 1
    priority: int = 0
    note: str = ""
    lock_delay: float = 0.0
    detects: bool = True
    """Detect deadlocks while waiting."""
    address: str = ""
    trace: str = ""
    held: int = 0
    """Units of these that an upgrade holds already. It does not ask for them again."""
    waiter_ttl: float = 0.0
    """Seconds in the queue without a heartbeat; 0: the ttl, and at least `MIN_WAITER_TTL`."""

    def command(self, lease_id: str, inbox: str, *, queue: bool = False) -> Acquire:
        """The command for one try, or for a position in the queue."""
        return Acquire(
            self.key,
            lease_id,
            self.owner,
            self.ttl,
            self.units - self.held,
            self.capacity,
            queue,
            self.waiter_ttl or max(self.ttl, MIN_WAITER_TTL),
            self.priority,
            self.note,
            lock_delay=self.lock_delay,
            inbox=inbox,
            address=self.address,
            trace=self.trace,
        )


class Grant(NamedTuple):
    """A grant, as this client knows it."""

    id: str
    token: int
    slots: tuple[int, ...]
    since: float
    """Earliest time at which the store can have granted it."""
    deadline: float
    claim_by: float | None
    """Time by which a renewal must claim it; None: it needs no claim."""
    doubtful: bool
    """A copy of its Acquire may still be under way."""
    uncommitted_at: float | None = None
    """Send time of an Acquire within the user's transaction, which may not have committed."""
    seq: int = 0
    """Number of the newest Resize, of a lease that was attached."""

    @classmethod
    def of(
        cls,
        lease_id: str,
        reply: Granted,
        sent: float,
        *,
        doubtful: bool,
        in_transaction: bool = False,
    ) -> Self:
        """The grant in a reply to an Acquire that was sent at `sent`."""
        deadline = sent + trusted(reply.ttl)
        uncommitted_at = sent if in_transaction else None
        return cls(
            lease_id, reply.token, reply.slots, sent, deadline, None, doubtful, uncommitted_at
        )


class LeaseRules(NamedTuple):
    """Differences of the leases of a kind from those of a `Lock`; in `HoldOptions`."""

    renew_every: float | None = None
    """Seconds between two renewals; None: a third of the ttl."""
    trust_for: float = inf
    """Seconds for which the holder trusts a confirmed message, at most."""
    retain: float = 0.0
    """Seconds from the grant during which the units stay taken, even after a release."""
    deadline_is: LossReason = "expired"
    """Why the lease is lost at its deadline, unless that is the end of `max_hold`."""
    overruns: bool = False
    """The body may run on after `max_hold`: nothing interrupts it, and it ends without `LeaseLost`."""
    on_started: Callable[[Any], object] | None = None
    on_stopped: Callable[[Any], object] | None = None


COMMON = LeaseRules()


class HoldOptions(NamedTuple):
    """How a lease is to be held."""

    ttl: float
    owner: str
    units: int
    exclusive: bool
    """A nested wait for its key would never end: it has a capacity of 1, or readers and writers."""
    auto_renew: bool = True
    max_hold: float | None = None
    on_lost: Callable[[Any], object] | None = None
    rules: LeaseRules = COMMON
    detects: bool = True
    """Detect deadlocks while an upgrade waits."""


# -- options ----------------------------------------------------------------------------------------------


class CommonOptions(TypedDict, total=False):
    """Options of all primitives."""

    note: str | Unset
    label: str | Unset
    require: Promise | Iterable[Promise]
    env_prefix: str | None
    env_load: bool


class LockOptions[LeaseT](CommonOptions, total=False):
    """Options of a lock, a semaphore or a readers-writer lock."""

    ttl: Duration | Unset
    wait: Duration | Unset | None
    priority: int | Unset
    auto_renew: bool | Unset
    max_hold: Duration | Unset | None
    reentrant: bool | Unset
    lock_delay: Duration | Unset
    detect_deadlocks: bool | Unset
    on_lost: Callable[[LeaseT], object] | None
    on_wait: Callable[[Waiting], object] | None


class ClientLockOptions[LeaseT](LockOptions[LeaseT], total=False):
    """Options of a lock, and its client."""

    client: Any


class TaskOptions[LeaseT](CommonOptions, total=False):
    """Options of a task lock, without its times."""

    cancel: bool | Unset
    on_lost: Callable[[LeaseT], object] | None


class ElectionOptions[TermT](CommonOptions, total=False):
    """Options of a leader election."""

    ttl: Duration | Unset
    renew_deadline: Duration | Unset
    retry: Duration | Unset
    priority: int | Unset
    lock_delay: Duration | Unset
    on_started: Callable[[TermT], object] | None
    on_stopped: Callable[[TermT], object] | None


type WhenBusy[D] = Callable[[AcquireTimeout], D]
"""A function as `on_busy` of `wraps`."""


class SkippingDecorator[D](Protocol):
    """What `wraps` with an `on_busy` returns: the function can return something else instead."""

    @overload
    def __call__[**P, R](
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | D]]: ...

    @overload
    def __call__[**P, R](self, function: Callable[P, R], /) -> Callable[P, R | D]: ...


class NoOptions(TypedDict):
    """No options: type checkers reject unknown ones."""


_WAIT = "write wait= (how long to queue; 0 for one try)"
_TTL = "write ttl= (how long the store keeps it without a renewal)"
_ONE_TRY = "write wait=0 for one try, or try_acquire(); without it, acquire() waits"
_PUSHED = "leave it out: waiters do not poll, the store tells them when it is their turn"
_OTHER_WORDS = {
    "timeout": (
        "timeout= is ambiguous: did you mean wait= (how long to queue) or "
        "ttl= (how long the store keeps it)?"
    ),
    **dict.fromkeys(
        ("blocking_timeout", "acquire_timeout", "wait_timeout", "max_wait", "wait_time"), _WAIT
    ),
    "blocking": _ONE_TRY,
    **dict.fromkeys(
        ("lease", "lease_time", "lease_duration", "expire", "expires", "expiry", "lock_timeout"),
        _TTL,
    ),
    **dict.fromkeys(
        ("sleep", "retry_interval", "retry_delay", "retry_every", "poll_interval"), _PUSHED
    ),
    "auto_renewal": "write auto_renew=, which is on unless you turn it off",
    "thread_local": "leave it out: what is held is the lease, which you may hand to another thread",
    **dict.fromkeys(
        ("limit", "value", "permits", "max_leases"), "write Semaphore(name, capacity=N)"
    ),
    **dict.fromkeys(("owner", "id"), "write label=, which is shown as part of the owner"),
    "worker": "leave it out: Dibs takes no identity, and a restarted process waits at most one ttl",
    **dict.fromkeys(
        ("backend", "store", "url", "redis"), "write client=connect(url), or set DIBS_URL"
    ),
    **dict.fromkeys(("on_elected", "on_leading"), "write on_started="),
    **dict.fromkeys(("min_lock_seconds", "max_lock_seconds"), "write TaskLock(name, 1, 60)"),
}
"""Names that other libraries have for our options, and advice."""

_NEEDS: Mapping[str | None, str] = {_WAIT: "wait", _ONE_TRY: "wait", _TTL: "ttl"}
"""The option that an advice names."""


def shown_as[F: Callable[..., object]](name: str) -> Callable[[F], F]:
    """Rename a function in Python's own messages, where users know its class by another name."""

    def rename(function: F) -> F:
        function.__qualname__ = name
        return function

    return rename


def refuse_options(
    of: str, given: Mapping[str, object], known: Callable[..., object], takes: object = ""
) -> NoReturn:
    """Raise `TypeError` for options that `known` lacks, or for more by position than what it `takes`."""
    from inspect import Parameter, signature  # only a wrong call pays for it

    parameters = signature(known).parameters
    options = [name for name in parameters if parameters[name].kind is Parameter.KEYWORD_ONLY]
    if takes:
        raise TypeError(f"{of} takes {takes}; options go by keyword: {'=, '.join(options[:3])}=")
    name = min(given)
    advice = _OTHER_WORDS.get(name)
    if name == "timeout" and (of == "acquire()" or "wait" not in options):
        advice = _WAIT if "wait" in options else _TTL
    if of == "acquire()" and (advice == _TTL or name in LockOptions.__annotations__):
        advice = f"{advice or 'write it'} in the constructor"
    elif {_WAIT: "wait", _ONE_TRY: "wait", _TTL: "ttl"}.get(advice or "", name) not in (
        name,
        *options,
    ):
        advice = f"its options are {'=, '.join(options)}="
    if advice is None:
        near = closest(name, options)
        advice = f"did you mean {near}=?" if near else ""
    if not advice.startswith(name):
        advice = f"{of} has no option {name}={advice and ': '}{advice}"
    raise TypeError(advice)
