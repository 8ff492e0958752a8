"""The decorator: hold a lock while a function runs, named after its arguments."""

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal

from leasehold.config import LockConfig, configured
from leasehold.errors import AcquireTimeout, NotHeld
from leasehold.faces import aio, blocking
from leasehold.primitives.lease import LeaseBase
from leasehold.primitives.template import NameTemplate

_current: ContextVar[LeaseBase] = ContextVar("leasehold_current_lease")


def current_lease() -> Any:
    """The lease that the innermost wrapped function around us holds. Raises `NotHeld` outside of one."""
    try:
        return _current.get()
    except LookupError:
        raise NotHeld("no function that was decorated with wraps() is running here") from None


def wraps[F: Callable[..., Any]](
    template: str,
    *,
    on_busy: Literal["raise", "skip"] = "raise",
    default: object = None,
    client: Any = None,
    **options: Any,
) -> Callable[[F], F]:
    """What `Lock.wraps` of both worlds does; see there."""
    if on_busy not in ("raise", "skip"):
        raise ValueError(f"on_busy is {on_busy!r}: write 'raise' or 'skip'")
    if on_busy == "skip":
        options.setdefault("wait", 0)
    extra: dict[str, Any] = {key: options.pop(key) for key in ("on_lost", "require") if key in options}
    loading = {key: options.pop(key) for key in ("env_prefix", "env_load") if key in options}

    def decorate(function: F) -> F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__qualname__} is a generator: its body runs long after the call that "
                "made it, so a lock around the call would protect nothing; lock inside it"
            )
        name = NameTemplate(template, function)
        config = configured("lock", template, options, **loading)
        skip = AcquireTimeout if on_busy == "skip" else ()
        make = _wrap_async if inspect.iscoroutinefunction(function) else _wrap_plain
        wrapped: Any = make(function, name, config, {"client": client, **extra}, skip, default)
        made: F = wrapped
        return made

    return decorate


def _wrap_async(
    function: Callable[..., Any],
    name: NameTemplate,
    config: LockConfig,
    extra: dict[str, Any],
    skip: Any,
    default: object,
) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        lock = aio.Lock.from_config(name.name(args, kwargs), config, **_in_world(extra, aio.Client))
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
    config: LockConfig,
    extra: dict[str, Any],
    skip: Any,
    default: object,
) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        made = name.name(args, kwargs)
        lock = blocking.Lock.from_config(made, config, **_in_world(extra, blocking.Client))
        try:
            lease = lock.acquire()
        except skip:
            return default
        with lease:
            token = _current.set(lease)
            try:
                return function(*args, **kwargs)
            finally:
                _current.reset(token)

    return wrapped


def _in_world(extra: dict[str, Any], client_type: type[Any]) -> dict[str, Any]:
    """A client of either world serves a function of either."""
    client = extra.get("client")
    if client is None or isinstance(client, client_type):
        return extra
    return {**extra, "client": client_type(client.hub)}
