"""`@needs_lock`: what an activity needs before it may run.

Nothing here does I/O, since workflows import the modules of their activities in Temporal's sandbox.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from temporalio import workflow

from dibs import NameTemplate
from dibs.client import default_is_named
from dibs.config import UNSET, Duration, Unset, optional_seconds, safe_ttl
from dibs.errors import InvalidName, NotConfigured
from dibs.stores.registry import check_scheme
from dibs.temporal.activity.errors import no_activity, not_installed
from dibs.temporal.activity.lock import lock_of, refuse_without
from dibs.temporal.sdk import is_part_of_a_workflow, is_workflow, run_method

if TYPE_CHECKING:
    import dibs
    import dibs.sync


type LockBackend = str | dibs.Client | dibs.sync.Client | None
"""A store's URL or name, a client of either side, or None: the interceptor's, else the default store."""


def checked_backend(backend: Any) -> LockBackend:
    """Check it; open nothing. Raises `TypeError`, and `NotConfigured` for an unknown URL scheme."""
    if isinstance(backend, str):
        if not backend:
            raise NotConfigured("backend is empty: give a store's URL or name, or leave it out")
        if "://" in backend:
            check_scheme(backend)
        return backend
    if backend is None or hasattr(backend, "session"):
        client: LockBackend = backend
        return client
    raise TypeError(
        f"backend is {backend!r}: give a store's URL, what dibs.connect() returned, "
        "or the name of a store"
    )


def refuse_nowhere(who: str) -> None:
    """Raises `NotConfigured` without a named store: a file of this host would exclude no other host."""
    if not default_is_named():
        raise NotConfigured(
            f"nothing says where the lock of {who} is kept: give needs_lock(backend=...) or "
            "DibsPlugin(backend=...) a store's URL, such as temporal://host:7233/namespace or "
            "redis://host, or set DIBS_URL"
        )


class LockName:
    """A name such as `"report:{day}"`, or `"tenant/{order.tenant}"` for a field of a dataclass.

    Values are as for `NameTemplate`: `str`, `bytes`, `int`, `UUID`, `date` or `Enum`, escaped so that two
    values never make the same name. Raises `ValueError` for a field that is no parameter of the activity.
    """

    def __init__(self, template: str, function: Callable[..., Any]) -> None:
        try:
            self._template = NameTemplate(template)
        except InvalidName:
            raise
        except ValueError as error:
            raise ValueError(
                f"{template!r} is no name with fields ({error}): a field is written {{parameter}}, "
                "a brace that is none {{ or }}"
            ) from error
        self._signature = inspect.signature(function)
        known = list(self._signature.parameters)
        for field in self._template.fields:
            head, *rest = field.split(".")
            if head not in known or not all(part.isidentifier() for part in rest):
                names = ", ".join(each for each in known if each != "self") or "none"
                raise ValueError(
                    f"{template!r} names {field!r}, and {function.__qualname__} has no such parameter "
                    f"(it has: {names}; a field of one is written {{parameter.field}})"
                )

    def of(self, arguments: tuple[Any, ...], named: Mapping[str, Any] | None = None) -> str | bytes:
        """The name for these arguments, with `self` if the activity is a method.

        Raises `TypeError` for a value that makes no name, or an argument without such a field.
        """
        bound = self._signature.bind(*arguments, **(named or {}))
        bound.apply_defaults()
        values = {each: _value(each, bound.arguments) for each in self._template.fields}
        return self._template.filled(values)


def _value(field: str, arguments: Mapping[str, Any]) -> object:
    head, *rest = field.split(".")
    value: Any = arguments[head]
    for part in rest:
        try:
            if isinstance(value, Mapping):
                value = cast("Mapping[str, Any]", value)[part]
            else:
                value = getattr(value, part)
        except (AttributeError, KeyError):
            raise TypeError(f"{head} is a {type(value).__name__}, which has no {part}") from None
    return value


NEED = "__dibs_needs_lock__"

MAX_LOCKS = 5
"""The capacity if only `lock_name` is given, or nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class LockNeed:
    """The checked options of `needs_lock`."""

    activity: str
    name: LockName
    capacity: int
    backend: LockBackend
    ttl: float | None
    auto_renew: bool
    wait: float | None
    wait_in_slot: float | Unset | None
    priority: int
    application: str | None

    def name_for(self, function: Any, arguments: Sequence[Any]) -> str | bytes:
        """The name for a call by Temporal. Raises `TypeError` as `LockName.of` does."""
        this = getattr(function, "__self__", None)
        if not hasattr(function, "__qualname__"):
            this = function  # an object with __call__
        return self.name.of(tuple(arguments) if this is None else (this, *arguments))


def needs_lock[F: Callable[..., Any]](
    name: str | None = None,
    *,
    capacity: int | None = None,
    backend: LockBackend = None,
    max_locks: int | None = None,
    lock_name: str | None = None,
    ttl: Duration | None = None,
    auto_renew: bool = True,
    wait: Duration | None = None,
    wait_in_slot: Duration | Unset | None = UNSET,
    priority: int = 0,
    application: str | None = None,
) -> Callable[[F], F]:
    """Run an activity only while it holds one of the `capacity` slots of the lock `name`.

    Write it above or below `@activity.defn`, and install `DibsPlugin` or `LockInterceptor` at the
    client or the worker: without it the activity fails, instead of running without its lock.

    `"report:{day}"` takes the activity's parameter `day`, `"{order.tenant}"` a field of one. `capacity` is
    1 unless it is given. `max_locks` and `lock_name` are other words for both; with `lock_name` alone,
    or with nothing, there are 5 slots, and the name is the function's. `backend` is a store's URL, a
    client or the name of a store (None: the interceptor's, then the default store). The function may call
    itself only with arguments that make the same name.

    Contention: waits in turn, by `priority`, for at most `wait` seconds (None: as long as the activity's
    timeouts allow). Then it fails with `AcquireTimeout`, without a retry. An attempt that has waited for
    `wait_in_slot` seconds (unset: the interceptor's; None: no limit) ends and is retried a second later,
    so that other activities get its worker's slot; it keeps its position. The retry policy stays yours: if
    it limits attempts, an attempt waits for as long as it can.

    Expiry: the lease covers the attempt's timeouts and a margin. Renewals keep it while the activity
    runs and sends the heartbeats of its heartbeat timeout, each for `ttl` seconds (unset: the settings');
    with `auto_renew=False` it is one lease for the whole time. A loss cancels the activity, which fails
    with `LeaseLost` and is retried unless the lease was revoked.

    Raises `TypeError` for anything but an activity, `ValueError` for a field that is no parameter.
    """
    found_name, found_capacity = _checked_name(name, capacity, max_locks, lock_name)
    if not isinstance(auto_renew, bool):
        raise TypeError(f"auto_renew is {auto_renew!r}: give True or False")
    in_slot = (
        UNSET if isinstance(wait_in_slot, Unset) else optional_seconds(wait_in_slot, "wait_in_slot")
    )

    def decorate(function: F) -> F:
        _refuse_what_is_no_activity(function)
        need = LockNeed(
            activity=f"{function.__module__}.{function.__qualname__}",
            name=LockName(found_name or function.__name__, function),
            capacity=found_capacity,
            backend=checked_backend(backend),
            ttl=None if ttl is None else safe_ttl(ttl),
            auto_renew=auto_renew,
            wait=optional_seconds(wait, "wait"),
            wait_in_slot=in_slot,
            priority=priority,
            application=application,
        )
        guarded: Any = _guarded(function, need)
        setattr(guarded, NEED, need)
        made: F = guarded
        return made

    return decorate


def need_of(function: Any) -> LockNeed | None:
    """The need of an activity: a function, a method, or an object with `__call__`."""
    call = getattr(type(function), "__call__", None)  # noqa: B004  # not whether it has one
    found = getattr(function, NEED, None) or getattr(call, NEED, None)
    return found if isinstance(found, LockNeed) else None


def refuse_locked_workflows(workflows: Iterable[type]) -> None:
    """Raises `TypeError` for a workflow whose run method was decorated as if it were an activity."""
    for each in workflows:
        if need_of(run_method(each)) is not None:
            raise TypeError(
                f"needs_lock is for activities, and {each.__name__} is a workflow: {_INSTEAD}"
            )


def _guarded(function: Callable[..., Any], need: LockNeed) -> Callable[..., Any]:
    """The function, which refuses to run unless its caller holds the lock for it.

    It may call itself as long as its arguments name the same lock.
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_in_task(*args: Any, **kwargs: Any) -> Any:
            _check(need, args, kwargs)
            return await function(*args, **kwargs)

        return run_in_task

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        _check(need, args, kwargs)
        return function(*args, **kwargs)

    return run


def _check(need: LockNeed, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Raises `ApplicationError` unless the lock is held that these arguments name."""
    lock = lock_of(need.activity)
    if lock is None:
        raise no_activity(need.activity) if workflow.in_workflow() else not_installed(need.activity)
    refuse_without(lock, need.name.of(arguments, named))


def _checked_name(
    name: Any, capacity: Any, max_locks: Any, lock_name: Any
) -> tuple[str | None, int]:
    """The name, or None for the function's, and the capacity."""
    if callable(name):
        raise TypeError('write `@needs_lock("name")` or `@needs_lock()`, not `@needs_lock`')
    for what, value in (("name", name), ("lock_name", lock_name)):
        if not isinstance(value, str | None):
            advice = " (for the number of slots write capacity=)" if isinstance(value, int) else ""
            raise TypeError(f"{what} is {value!r}: give a text{advice}")
        if value == "":
            raise ValueError(f"{what} is empty: give a text, or leave it out")
    if name is not None and lock_name is not None:
        raise TypeError("needs_lock() was given a name and lock_name=: give one of them")
    if capacity is not None and max_locks is not None:
        raise TypeError("needs_lock() was given capacity= and max_locks=: give one of them")
    found = capacity if capacity is not None else max_locks
    if found is None:
        found = 1 if name is not None else MAX_LOCKS
    if type(found) is not int or found < 1:
        raise ValueError(f"capacity is {found!r}: give an int of at least 1")
    return name if name is not None else lock_name, found


_INSTEAD = (
    "inside the workflow write `async with dibs.temporal.Semaphore(...).acquire():` around what needs "
    "it, or decorate the activities that it runs"
)


def _refuse_what_is_no_activity(function: Any) -> None:
    if inspect.isclass(function):
        what = f"a workflow: {_INSTEAD}"
        if not is_workflow(function):
            what = (
                "a class: decorate its `__call__` if its objects are activities; if it is to be a workflow, "
                f"{_INSTEAD}"
            )
        raise TypeError(f"needs_lock is for activities, and {function.__name__} is {what}")
    if is_part_of_a_workflow(function):
        raise TypeError(
            f"needs_lock is for activities, and {function.__qualname__} is a method of a workflow: {_INSTEAD}"
        )
    if isinstance(function, staticmethod | classmethod):
        raise TypeError(f"write @{type(function).__name__} above @needs_lock(...), not below it")
    if not callable(function) or not hasattr(function, "__qualname__"):
        raise TypeError(f"needs_lock decorates a function, and {function!r} is none")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function.__qualname__} is a generator, which can't be an activity")
