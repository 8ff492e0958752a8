"""Leases in Starlette applications: a client of the application, and problem details (RFC 9457)."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from dibs import DibsError, connect
from dibs.contrib import needs
from dibs.contrib.problems import MEDIA_TYPE, Kind, kinds, problem

try:
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import JSONResponse, Response
except ModuleNotFoundError as _error:
    raise needs("Starlette", "starlette") from _error

type Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]

_STATUS = "dibs.status"


def problems(*, status: int = 409, disclose: bool = False) -> dict[int | type[Exception], Handler]:
    """Exception handlers: `Starlette(exception_handlers=problems())`, and likewise `FastAPI`.

    `AcquireTimeout` becomes `status` with `Retry-After` (5 s at most), `BackendUnavailable` 503 with
    `Retry-After`, `LeaseLost` 500, as the handler may have done part of its work, and `InvalidName` 400.
    The body is `application/problem+json`: what is wrong, the queue position, when to try again. With
    `disclose=True` it also names the key and its holders (hosts, processes and notes; never a lease id).
    Raises `ValueError` for a status that is no error.
    """
    return {error: ProblemHandler(kind, disclose) for error, kind in kinds(status).items()}


class ProblemHandler:
    """Answers one kind of error; `status` is the response's, if the request has no other."""

    def __init__(self, kind: Kind, disclose: bool) -> None:
        self.status: int = kind.status
        self._kind = kind
        self._disclose = disclose

    async def __call__(self, request: Request, error: DibsError) -> Response:
        """The response."""
        kind = self._kind
        if kind.name == "busy":
            kind = kind._replace(status=request.scope.get(_STATUS, self.status))
        body, headers = problem(kind, error, request.url.path, disclose=self._disclose)
        return JSONResponse(body, kind.status, headers, media_type=MEDIA_TYPE)


def answer_with(connection: HTTPConnection, status: int) -> None:
    """Answer contention with another status, for this request."""
    connection.scope[_STATUS] = status


type Lifespan[State] = Callable[[Any], AbstractAsyncContextManager[State]]


def lifespan(
    url: str | None = None,
    *,
    then: Lifespan[Mapping[str, Any] | None] | None = None,
    default: bool = True,
    **options: Any,
) -> Lifespan[Mapping[str, Any]]:
    """`Starlette(lifespan=lifespan("redis://localhost/0"))`: a client that lives as long as the application.

    Bare primitives use its store (so that tests can `override` it), and `connect()` without a URL is a
    client of it. With `default=False` only `request.state.dibs` is the client. `then` is a lifespan of your
    own, which runs inside. Options are those of `connect()`; without a URL the default store is used. At
    shutdown all leases are released, and the previous default store applies again. Nothing connects before
    the first request that needs it, so an outage does not keep the application from starting.
    """

    @asynccontextmanager
    async def run(app: Any) -> AsyncGenerator[dict[str, Any]]:
        client = connect(url, default=default, **options)
        try:
            async with then(app) if then is not None else nullcontext() as state:
                yield {**({} if default else {"dibs": client}), **(state or {})}
        finally:
            await client.close()

    return run
