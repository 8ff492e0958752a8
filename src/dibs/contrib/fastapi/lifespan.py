"""The store of an application, open while it runs."""

import warnings
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from dibs import AcquireTimeout, connect
from dibs.contrib.fastapi.held import Held
from dibs.contrib.fastapi.routes import dependants, routes_of

type Lifespan[State] = Callable[[Any], AbstractAsyncContextManager[State]]


def lifespan(
    url: str | None = None,
    *,
    then: Lifespan[Mapping[str, Any] | None] | None = None,
    default: bool = True,
    **options: Any,
) -> Lifespan[Mapping[str, Any]]:
    """`FastAPI(lifespan=lifespan("redis://localhost/0"))`: a client that lives as long as the application.

    Bare primitives and every `Held` use its store (so that tests can `override` it), and `connect()`
    without a URL is a client of it. With `default=False` only this application's `Held`s do, and handlers
    find the client as `request.state.dibs`. `then` is a lifespan of your own, which runs inside.
    Options are those of `connect()`; without a URL the default store is used. A `Held` that is named after
    a parameter that its route doesn't have fails the start, with `ValueError`. At shutdown what is held is
    given up, and what was the default store before is it again. Nothing connects before the first request
    that needs it, so an outage doesn't keep the application from starting.
    """

    @asynccontextmanager
    async def run(app: Any) -> AsyncGenerator[dict[str, Any]]:
        _check(app)
        client = connect(url, default=default, **options)
        try:
            async with then(app) if then is not None else nullcontext() as state:
                yield {**({} if default else {"dibs": client}), **(state or {})}
        finally:
            await client.close()

    return run


def _check(app: Any) -> None:
    """Raises `ValueError` for a field that no route has; warns if contention would be answered with 500."""
    held = [(route, each) for route, each in _held_by(app)]
    for route, each in held:
        each.check(route)
    if held and not any(kind in app.exception_handlers for kind in AcquireTimeout.__mro__):
        warnings.warn(
            f"{held[0][1]!r} is in use, and nothing handles AcquireTimeout, so that contention would be "
            "answered with 500: write FastAPI(exception_handlers=problems())",
            stacklevel=2,
        )


def _held_by(app: Any) -> Iterator[tuple[Any, Held]]:
    """Every route of an application that holds something, with what it holds."""
    for route in routes_of(app):
        for dependant in dependants(route):
            if isinstance(dependant.call, Held):
                yield route, dependant.call
