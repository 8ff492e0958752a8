"""The decorator: hold a lock while a function runs, named after its arguments."""

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from dibs.config import LockConfig
from dibs.errors import AcquireTimeout, NotHeld
from dibs.faces import blocking
from dibs.faces.callables import is_async, refuse_generator, refuse_late_body
from dibs.faces.described import client_of
from dibs.primitives.description import Description
from dibs.primitives.options import refuse_options
from dibs.primitives.template import NameTemplate
from dibs.settings import configured
from dibs.stores import NamedStore

if TYPE_CHECKING:
    from dibs.faces import aio

_current: "ContextVar[aio.Lease | blocking.Lease]" = ContextVar("dibs_current_lease")

_SETTINGS = frozenset(LockConfig.__dataclass_fields__)


def current_lease() -> "aio.Lease | blocking.Lease":
    """The lease that the innermost wrapped function around us holds. Raises `NotHeld` outside of one.

    In a coroutine function it is one of `dibs`, in a plain function one of `dibs.sync`; what
    is a plain call in both (`token`, `remaining`, `ensure()`, …) needs no telling apart.
    """
    try:
        return _current.get()
    except LookupError:
        raise NotHeld("no function that was decorated with wraps() is running here") from None


@contextmanager
def as_current[LeaseT: "aio.Lease | blocking.Lease"](lease: LeaseT) -> Generator[LeaseT]:
    """In this block `current_lease()` is that one: for what acquires by itself and then runs a function."""
    token = _current.set(lease)
    try:
        yield lease
    finally:
        _current.reset(token)


def wraps[F: Callable[..., Any]](
    template: str,
    *,
    on_busy: Literal["raise", "skip"] = "raise",
    default: object = None,
    client: Any = None,
    **options: Any,
) -> Callable[[F], F]:
    """What `Lock.wraps` of both worlds does; see there."""
    check(template, on_busy)
    if on_busy == "skip":
        options.setdefault("wait", 0)
    extra: dict[str, Any] = {
        key: options.pop(key) for key in ("on_lost", "on_wait", "require") if key in options
    }
    loading = {key: options.pop(key) for key in ("env_prefix", "env_load") if key in options}
    if unknown := {key: options[key] for key in options.keys() - _SETTINGS}:
        refuse_options("wraps()", unknown, Description.__init__)

    def decorate(function: F) -> F:
        config = configured("lock", template, options, **loading)
        return wrapped_in(
            _locks, function, template, config, {"client": client, **extra}, on_busy, default
        )

    return decorate


def wrapped_in[F: Callable[..., Any]](
    locks: Callable[[bool], Any],
    function: F,
    template: str,
    config: Any,
    extra: dict[str, Any],
    on_busy: str,
    default: object,
) -> F:
    """The function, holding one of `locks(is_async)` while it runs, as `config` and `extra` describe it."""
    refuse_generator(function)
    name = NameTemplate(template, function)
    skip = AcquireTimeout if on_busy == "skip" else ()
    asynchronous = is_async(function)
    make = _wrap_async if asynchronous else _wrap_plain
    about = _in_world(extra, asynchronous)
    described = partial(locks(asynchronous).from_config, config=config, **about)
    wrapped: Any = make(function, name, described, skip, default)
    made: F = wrapped
    return made


def _locks(asynchronous: bool) -> Any:
    """The class of the world that a function is of."""
    if not asynchronous:
        return blocking.Lock
    from dibs.faces import aio  # imports asyncio, which who only has threads never needs

    return aio.Lock


def check(template: object, on_busy: str) -> None:
    """Raises for a decorator that was called wrongly."""
    _check_template(template)
    if on_busy not in ("raise", "skip"):
        raise ValueError(f"on_busy is {on_busy!r}: write 'raise' or 'skip'")


def _check_template(given: object) -> None:
    if isinstance(given, str):
        return
    if callable(given):
        raise TypeError(
            'wraps takes the lock\'s name: write `@Lock.wraps("name")`, not `@Lock.wraps`'
        )
    raise TypeError(f"the name is {given!r}: give a text, such as 'report:{{day}}'")


def _wrap_async(
    function: Callable[..., Any],
    name: NameTemplate,
    described: Callable[[str | bytes], Any],
    skip: Any,
    default: object,
) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        lock = described(name.name(args, kwargs))
        try:
            lease = await lock.acquire()
        except skip:
            return default
        async with lease:
            token = _current.set(lease)
            try:
                return await function(*args, **kwargs)
            finally:
                _current.reset(token)

    return wrapped


def _wrap_plain(
    function: Callable[..., Any],
    name: NameTemplate,
    described: Callable[[str | bytes], Any],
    skip: Any,
    default: object,
) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        lock = described(name.name(args, kwargs))
        try:
            lease = lock.acquire()
        except skip:
            return default
        with lease:
            token = _current.set(lease)
            try:
                result = function(*args, **kwargs)
                refuse_late_body(function, result)
                return result
            finally:
                _current.reset(token)

    return wrapped


def _in_world(extra: dict[str, Any], asynchronous: bool) -> dict[str, Any]:
    """A client of either world serves a function of either, and so does a name."""
    client = client_of(extra.get("client"))
    if isinstance(client, NamedStore | None):
        return {**extra, "client": client}
    client_type: type[Any]
    if asynchronous:
        from dibs.faces import aio_client

        client_type = aio_client.Client
    else:
        from dibs.faces import blocking_client

        client_type = blocking_client.Client
    return (
        extra if isinstance(client, client_type) else {**extra, "client": client_type(client.hub)}
    )
