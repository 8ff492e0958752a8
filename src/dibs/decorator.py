"""The decorator, which holds a lock while a function runs, and names made from its arguments."""

import functools
import inspect
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date
from enum import Enum
from functools import partial
from string import Formatter
from typing import Any, Literal
from uuid import UUID

from dibs.client import NamedStore
from dibs.core.names import key_of, utf8
from dibs.errors import AcquireTimeout, NotHeld
from dibs.lazy import imported
from dibs.locks.base import PrimitiveBase
from dibs.locks.lease import LeaseBase
from dibs.locks.requests import WhenBusy, refuse_options
from dibs.locks.semaphore import SemaphoreBase
from dibs.locks.tasklock import TaskLockBase
from dibs.settings import configured
from dibs.sides import checked_client

# -- names ------------------------------------------------------------------------------------------------

_ESCAPES = ((b"%", b"%25"), (b":", b"%3A"), (b"/", b"%2F"))  # the escape itself first


class NameTemplate:
    """A name with fields, which are the parameters of a function or other named values.

    A field's value can be a `str`, `bytes`, `int`, `UUID`, `date` or `Enum`. Other types have no text that is
    the same in every process. `%`, `:` and `/` in a value are escaped, so that no value can make the name of
    another resource. As in every name, a `str` is its UTF-8; bytes that are not UTF-8 make the whole name
    bytes.
    """

    def __init__(self, template: str, function: Callable[..., Any] | None = None) -> None:
        self._parts: list[tuple[str, str | None]] = []
        for text, field, spec, conversion in Formatter().parse(template):
            if spec or conversion:
                raise ValueError(f"{template!r}: a field is a parameter's name and nothing else")
            self._parts.append((text, field))
        self._template = template
        self.fields: tuple[str, ...] = tuple(field for _, field in self._parts if field is not None)
        if function is not None:
            self._signature = inspect.signature(function)
            self.check(self._signature.parameters, called(function))
        self._fixed: str | None = None
        if not self.fields:
            self._fixed = "".join(text for text, _ in self._parts)
            key_of("lock", self._fixed)  # raises here, rather than at every call

    def check(self, parameters: Collection[str], owner: str) -> None:
        """Raises `ValueError` for a field that is none of these parameters of `owner`."""
        for field in self.fields:
            if field not in parameters:
                known = ", ".join(parameters) or "none"
                raise ValueError(
                    f"{self._template!r} names {field!r}, and {owner} has no such "
                    f"parameter (it has: {known})"
                )

    def name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | bytes:
        """The name for one call of its function. Raises `TypeError` for a value that makes no name."""
        if self._fixed is not None:
            return self._fixed
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return self.filled(bound.arguments)

    def filled(self, values: Mapping[str, object]) -> str | bytes:
        """The name with these values. Raises `TypeError` for one that makes no name."""
        if self._fixed is not None:
            return self._fixed
        made = bytearray()
        for text, field in self._parts:
            made += text.encode()
            if field is not None:
                made += _escaped(_raw(values[field], field))
        try:
            return made.decode()
        except UnicodeDecodeError:
            return bytes(made)


def called(function: Callable[..., Any]) -> str:
    """A callable's name in a message; a partial, or an object with `__call__`, has none."""
    return getattr(function, "__qualname__", None) or repr(function)


def _escaped(raw: bytes) -> bytes:
    for letter, escape in _ESCAPES:
        raw = raw.replace(letter, escape)
    return raw


def _raw(value: object, field: str) -> bytes:
    if isinstance(value, Enum):
        value = value.name
    if isinstance(value, bytes):
        return value
    if isinstance(value, date):
        return value.isoformat().encode()
    if isinstance(value, str):
        return utf8(value)
    if isinstance(value, UUID) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value).encode()
    raise TypeError(
        f"{field} is a {type(value).__name__}, which makes no name that is the same everywhere: "
        "pass a str, bytes, int, UUID, date or Enum"
    )


# -- the decorator ----------------------------------------------------------------------------------------

_current: ContextVar[LeaseBase] = ContextVar("dibs_current_lease")


def current_lease() -> LeaseBase:
    """Implement `dibs.current_lease` and `dibs.sync.current_lease`; see there."""
    try:
        return _current.get()
    except LookupError:
        raise NotHeld("no function that was decorated with wraps() is running here") from None


@contextmanager
def as_current[LeaseT: LeaseBase](lease: LeaseT) -> Generator[LeaseT]:
    """Let `current_lease()` return that lease in this block, for code that acquires by itself."""
    token = _current.set(lease)
    try:
        yield lease
    finally:
        _current.reset(token)


def wraps(
    primitive: Literal["Lock", "Semaphore", "TaskLock"],
    template: str,
    on_busy: str | WhenBusy[object],
    default: object,
    client: Any,
    options: Mapping[str, Any],
    capacity: int | None = None,
) -> Callable[[Callable[..., Any]], Any]:
    """`wraps` of `Lock`, `Semaphore` and `TaskLock`, on both sides; see there.

    `capacity` is that of a semaphore.
    """
    _check_template(template)
    if not callable(on_busy) and on_busy not in ("raise", "skip"):
        raise ValueError(f"on_busy is {on_busy!r}: write 'raise' or 'skip', or pass a function")
    when_busy = on_busy if callable(on_busy) else lambda busy: default

    base = _BASES[primitive]
    units = () if capacity is None else (capacity,)
    if capacity is not None and capacity > 1:
        # only an explicit reentrant=True is an error, as in the constructor
        options = {"reentrant": False, **options}
    config, about = _config_for(base, template, options, one_try=on_busy != "raise")
    if units:
        base.from_config("checked", *units, config)  # raises here, rather than at every call

    def decorate(function: Callable[..., Any]) -> Any:
        refuse_generator(function)
        name, awaits = NameTemplate(template, function), is_async(function)
        make = getattr(_side(awaits), primitive).from_config
        described = partial(make, config=config, client=_client_for_side(client, awaits), **about)
        handled = AcquireTimeout if on_busy != "raise" else ()
        return _holding(
            function, awaits, lambda *call: described(name.name(*call), *units), handled, when_busy
        )

    return decorate


_BASES: Mapping[str, Any] = {
    "Lock": PrimitiveBase,
    "Semaphore": SemaphoreBase,
    "TaskLock": TaskLockBase,
}


def _config_for(
    base: Any, template: str, options: Mapping[str, Any], *, one_try: bool
) -> tuple[Any, dict[str, Any]]:
    """Split a constructor's options: the config, and the other arguments of `from_config`."""
    others = inspect.signature(base.from_config).parameters.keys() - {"name", "capacity", "config"}
    loading = ("env_prefix", "env_load")
    given = {key: options[key] for key in options if key not in (*others, *loading)}
    known = base._config_type._readers
    if one_try and "wait" in known:
        given.setdefault("wait", 0)
    if unknown := {key: given[key] for key in given if key not in known}:
        refuse_options("wraps()", unknown, base.__init__)
    source = {key: options[key] for key in loading if key in options}
    config = configured(base._config_type, base.kind, template, given, **source)
    return config, {key: options[key] for key in options if key in others}


def _check_template(given: object) -> None:
    if isinstance(given, str):
        return
    if callable(given):
        raise TypeError(
            'wraps takes the lock\'s name: write `@Lock.wraps("name")`, not `@Lock.wraps`'
        )
    raise TypeError(f"the name is {given!r}: give a text, such as 'report:{{day}}'")


def _side(asynchronous: bool) -> Any:
    """The module with the classes for such a function; threads do not need the other one, and asyncio."""
    return imported("dibs._api" if asynchronous else "dibs.sync")


def _client_for_side(given: Any, asynchronous: bool) -> Any:
    """A client of the function's side: a client of either side serves both."""
    client = checked_client(given)
    client_type = _side(asynchronous).Client
    if isinstance(client, NamedStore | client_type | None):
        return client
    return client_type(client.session)


def _holding(
    function: Callable[..., Any],
    awaits: bool,
    describe: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    handled: Any,
    when_busy: WhenBusy[object],
) -> Any:
    """The function, holding what `describe` returns for its arguments; `when_busy` answers `handled`."""

    @functools.wraps(function)
    async def in_task(*args: Any, **kwargs: Any) -> Any:
        lock = describe(args, kwargs)
        try:
            lease = await lock.acquire()
        except handled as busy:
            return when_busy(busy)
        async with lease:
            with as_current(lease):
                return await function(*args, **kwargs)

    @functools.wraps(function)
    def in_thread(*args: Any, **kwargs: Any) -> Any:
        lock = describe(args, kwargs)
        try:
            lease = lock.acquire()
        except handled as busy:
            return when_busy(busy)
        with lease, as_current(lease):
            result = function(*args, **kwargs)
            refuse_late_body(function, result)
            return result

    return in_task if awaits else in_thread


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether it is a coroutine function, a partial of one, or has an async `__call__`."""
    return any(inspect.iscoroutinefunction(each) for each in _bodies(function))


def refuse_generator(function: Callable[..., Any]) -> None:
    """Raises `TypeError` for anything but a function, and for a generator, whose body runs later."""
    if isinstance(function, staticmethod | classmethod):
        kind = type(function).__name__
        raise TypeError(f"write @{kind} above @Lock.wraps(...), not below it")
    if not callable(function):
        raise TypeError(f"wraps decorates a function, and {function!r} is none")
    for each in _bodies(function):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise TypeError(
                f"{called(function)} is a generator: its body runs long after the call that "
                "made it, so a lock around the call would protect nothing; lock inside it"
            )


def refuse_late_body(function: Callable[..., Any], result: object) -> None:
    """Raises `TypeError` if a plain call returned something whose body has yet to run, without the lock."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        advice = "iterate inside the function, or lock inside the generator"
    elif inspect.isawaitable(result):
        advice = "decorate the `async def` itself, or await it inside the function"
    else:
        return
    # an async generator that has not begun holds nothing to close
    if isinstance(result, Coroutine | Generator):
        result.close()
    elif callable(cancel := getattr(result, "cancel", None)):
        cancel()
    raise TypeError(
        f"{called(function)} returned a {type(result).__name__}, whose body would run with the lock "
        f"already released: {advice}"
    )


def _bodies(function: Callable[..., Any]) -> tuple[Any, ...]:
    """The functions that a call can run: the callable, and the `__call__` of its type."""
    while isinstance(function, functools.partial):
        function = function.func
    return function, getattr(type(function), "__call__", None)  # noqa: B004  # not whether it has one
