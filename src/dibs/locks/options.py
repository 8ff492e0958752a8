"""The constructors' options, as type checkers see them, and what other libraries call them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypedDict

from dibs.config import Duration, Unset
from dibs.locks.waiting import Waiting


class HoldOptions(TypedDict, total=False):
    """How a primitive is acquired and held."""

    ttl: Duration | Unset
    wait: Duration | Unset | None
    priority: int | Unset
    note: str | Unset
    label: str | Unset
    auto_renew: bool | Unset
    max_hold: Duration | Unset | None
    reentrant: bool | Unset
    lock_delay: Duration | Unset
    detect_deadlocks: bool | Unset
    on_lost: Callable[[Any], object] | None
    on_wait: Callable[[Waiting], object] | None
    require: Iterable[str]
    env_prefix: str | None
    env_load: bool


class Options(HoldOptions, total=False):
    """The same, and by which client."""

    client: Any


class TaskOptions(TypedDict, total=False):
    """How a task lock is held."""

    cancel: bool | Unset
    note: str | Unset
    label: str | Unset
    on_lost: Callable[[Any], object] | None
    require: Iterable[str]
    env_prefix: str | None
    env_load: bool


class ElectionOptions(TypedDict, total=False):
    """How a leader is elected."""

    ttl: Duration | Unset
    renew_deadline: Duration | Unset
    retry: Duration | Unset
    priority: int | Unset
    note: str | Unset
    label: str | Unset
    lock_delay: Duration | Unset
    on_started: Callable[[Any], object] | None
    on_stopped: Callable[[Any], object] | None
    require: Iterable[str]
    env_prefix: str | None
    env_load: bool


class NoOptions(TypedDict):
    """To type checkers: there are no others."""


_WAIT = "write wait= (how long to queue; 0 for one try)"
_TTL = "write ttl= (how long the store keeps it without a renewal)"
_PUSHED = "leave it out: waiters do not poll, the store tells them when it is their turn"
_OTHER_WORDS = {
    "timeout": (
        "timeout= is ambiguous: did you mean wait= (how long to queue) or "
        "ttl= (how long the store keeps it)?"
    ),
    **dict.fromkeys(
        ("blocking_timeout", "acquire_timeout", "wait_timeout", "max_wait", "wait_time"), _WAIT
    ),
    "blocking": "write wait=0 for one try, or try_acquire(); without it, acquire() waits",
    **dict.fromkeys(
        ("lease_time", "lease_duration", "expire", "expires", "expiry", "lock_timeout"), _TTL
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
    "backend": "write client=connect(url), or set DIBS_URL",
    **dict.fromkeys(("min_lock_seconds", "max_lock_seconds"), "write TaskLock(name, 1, 60)"),
}
"""What other libraries call our options."""


def shown_as[F: Callable[..., object]](name: str) -> Callable[[F], F]:
    """What Python's own messages call a function, where its class has another name to users."""

    def rename(function: F) -> F:
        function.__qualname__ = name
        return function

    return rename


def refuse_options(
    of: str, given: Mapping[str, object], known: Callable[..., object], takes: object = ""
) -> NoReturn:
    """Raise `TypeError` for options that `known` lacks, or for more by position than what it `takes`."""
    from difflib import get_close_matches  # only a wrong call pays for them
    from inspect import Parameter, signature

    parameters = signature(known).parameters
    if takes:
        options = [name for name in parameters if parameters[name].kind is Parameter.KEYWORD_ONLY]
        raise TypeError(f"{of} takes {takes}; options go by keyword: {'=, '.join(options[:3])}=")
    name = min(given)
    advice = _WAIT if (of, name) == ("acquire()", "timeout") else _OTHER_WORDS.get(name)
    if of == "acquire()" and (advice == _TTL or name in HoldOptions.__annotations__):
        advice = f"{advice or 'write it'} in the constructor"
    if advice is None:
        near = get_close_matches(name, parameters, 1)
        advice = f"did you mean {near[0]}=?" if near else ""
    if not advice.startswith(name):
        advice = f"{of} has no option {name}={advice and ': '}{advice}"
    raise TypeError(advice)
