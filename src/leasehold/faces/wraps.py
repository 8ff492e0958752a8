"""The decorator: hold a lock while a function runs, named after its arguments."""

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

from leasehold.config import LockConfig, configured
from leasehold.errors import AcquireTimeout, NotHeld
from leasehold.faces import blocking
from leasehold.faces.callables import is_async, refuse_generator, refuse_late_body
from leasehold.primitives.primitive import NO_TIMEOUT
from leasehold.primitives.template import NameTemplate

if TYPE_CHECKING:
    from leasehold.faces import aio

_current: "ContextVar[aio.Lease | blocking.Lease]" = ContextVar("leasehold_current_lease")

_SETTINGS = frozenset(LockConfig.__dataclass_fields__)


def current_lease() -> "aio.Lease | blocking.Lease":
    """The lease that the innermost wrapped function around us holds. Raises `NotHeld` outside of one.

    In a coroutine function it is one of `leasehold`, in a plain function one of `leasehold.sync`; what
    is a plain call in both (`token`, `remaining`, `ensure()`, …) needs no telling apart.
    """
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
    _check_template(template)
    if on_busy not in ("raise", "skip"):
        raise ValueError(f"on_busy is {on_busy!r}: write 'raise' or 'skip'")
    if "timeout" in options:
        raise TypeError(NO_TIMEOUT)
    if on_busy == "skip":
        options.setdefault("wait", 0)
    extra: dict[str, Any] = {
        key: options.pop(key) for key in ("on_lost", "require") if key in options
    }
    loading = {key: options.pop(key) for key in ("env_prefix", "env_load") if key in options}
    if unknown := sorted(options.keys() - _SETTINGS):
        raise TypeError(f"wraps() has no option {', '.join(unknown)}")

    def decorate(function: F) -> F:
        refuse_generator(function)
        name = NameTemplate(template, function)
        config = configured("lock", template, options, **loading)
        skip = AcquireTimeout if on_busy == "skip" else ()
        make = _wrap_async if is_async(function) else _wrap_plain
        wrapped: Any = make(function, name, config, {"client": client, **extra}, skip, default)
        made: F = wrapped
        return made

    return decorate


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
    config: LockConfig,
    extra: dict[str, Any],
    skip: Any,
    default: object,
) -> Callable[..., Any]:
    from leasehold.faces import aio  # imports asyncio, which who only has threads never needs

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
                result = function(*args, **kwargs)
                refuse_late_body(function, result)
                return result
            finally:
                _current.reset(token)

    return wrapped


def _in_world(extra: dict[str, Any], client_type: type[Any]) -> dict[str, Any]:
    """A client of either world serves a function of either."""
    client = extra.get("client")
    if client is None or isinstance(client, client_type):
        return extra
    return {**extra, "client": client_type(client.hub)}
