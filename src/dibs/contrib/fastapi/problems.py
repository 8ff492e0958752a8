"""Errors as HTTP responses: the problem details of RFC 9457."""

from collections.abc import Callable, Coroutine, Iterator
from math import ceil
from typing import Any

import fastapi.routing
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response

from dibs import AcquireTimeout, BackendUnavailable, DibsError, Holder, InvalidName, LeaseLost


def routes_of(app: Any) -> Iterator[Any]:
    """All of an application, also those of the routers that it includes."""
    # FastAPI keeps included routers apart since it has this
    each = getattr(fastapi.routing, "iter_route_contexts", iter)
    yield from each(app.routes)


def dependants(route: Any) -> Iterator[Any]:
    """A route's handler and its dependencies, level by level; nothing for what is no route of FastAPI's."""
    dependant = getattr(route, "dependant", None)
    level = [dependant] if dependant is not None else []
    while level:
        yield from level
        level = [below for each in level for below in each.dependencies]


type Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]

_STATUS = "dibs.status"

_MEDIA_TYPE = "application/problem+json"

_KINDS: dict[type[DibsError], tuple[str, str, int]] = {
    AcquireTimeout: ("busy", "The resource is in use", 409),
    BackendUnavailable: ("unavailable", "The lock store is unavailable", 503),
    LeaseLost: ("lost", "The lease was lost while the request was served", 500),
    InvalidName: ("name", "The request makes no valid lock name", 400),
}
"""The end of the problem's type, its title, and its status."""

_PASSING = frozenset({"busy", "unavailable"})
"""Problems that get a `Retry-After`."""

_LONGEST = 5.0
"""Seconds of `Retry-After` at most: a hold usually ends long before its lease would."""


def problems(*, status: int = 409, disclose: bool = False) -> dict[int | type[Exception], Handler]:
    """Exception handlers: `FastAPI(exception_handlers=problems())`.

    `AcquireTimeout` becomes `status` with `Retry-After` (5 s at most), `BackendUnavailable` 503 with
    `Retry-After`, `LeaseLost` 500, as the handler may have done part of its work, and `InvalidName` 400.
    The body is `application/problem+json`: what is wrong, the queue position, when to try again. With
    `disclose=True` it also names the key and its holders (hosts, processes and notes; never a lease id).
    Raises `ValueError` for a status that is no error.
    """
    check_status(status)
    found: dict[int | type[Exception], Handler] = {
        error: ProblemHandler(kind, title, status if kind == "busy" else usual, disclose)
        for error, (kind, title, usual) in _KINDS.items()
    }
    return found


class ProblemHandler:
    """Answers one kind of error; `status` is the response's, if the request has no other."""

    def __init__(self, kind: str, title: str, status: int, disclose: bool) -> None:
        self.status: int = status
        self._kind = kind
        self._title = title
        self._disclose = disclose

    async def __call__(self, request: Request, error: DibsError) -> Response:
        """The response."""
        is_busy = self._kind == "busy"
        code = request.scope.get(_STATUS, self.status) if is_busy else self.status
        body = {
            "type": f"urn:dibs:problem:{self._kind}",
            "title": self._title,
            "status": code,
            "detail": str(error) if self._disclose else f"{self._title}.",
            "instance": request.url.path,
            **_about(error, self._disclose),
        }
        headers = {"Retry-After": str(_patience(error))} if self._kind in _PASSING else {}
        return JSONResponse(body, code, headers, media_type=_MEDIA_TYPE)


def openapi_responses(*, status: int = 409) -> dict[int | str, dict[str, Any]]:
    """Responses of a route that acquires leases, for `responses=` of FastAPI.

    `lifespan` adds them to routes with a `Held`. `status` is that of contention.
    """
    busy, away = _KINDS[AcquireTimeout], _KINDS[BackendUnavailable]
    return {status: _described(busy[1]), away[2]: _described(away[1])}


def _described(title: str) -> dict[str, Any]:
    texts = {key: {"type": "string"} for key in ("type", "title", "detail", "instance")}
    schema = {
        "type": "object",
        "properties": {
            **texts,
            "status": {"type": "integer"},
            "position": {"type": "integer", "description": "Waiters ahead."},
            "retry_after": {"type": "number", "description": "Seconds."},
        },
    }
    retry = {"description": "Seconds until the next try.", "schema": {"type": "integer"}}
    return {
        "description": title,
        "headers": {"Retry-After": retry},
        "content": {_MEDIA_TYPE: {"schema": schema}},
    }


def check_status(status: object) -> None:
    """Raises `ValueError` for what is no status of a failure."""
    if type(status) is not int or not 400 <= status <= 599:
        raise ValueError(f"status is {status!r}: give one from 400 to 599")


def answer_with(connection: HTTPConnection, status: int) -> None:
    """Answer contention with another status, for this request."""
    connection.scope[_STATUS] = status


def _patience(error: DibsError) -> int:
    """`Retry-After`, in whole seconds."""
    return max(1, ceil(min(error.retry_after or 0, _LONGEST)))


def _about(error: DibsError, disclose: bool) -> dict[str, Any]:
    """Further fields of the problem."""
    known: dict[str, Any] = {}
    if disclose and error.key is not None:
        known["key"] = error.key.decode("utf-8", "backslashreplace")
    if disclose and error.holders:
        known["holders"] = [_holder(each) for each in error.holders]
    if error.position is not None:
        known["position"] = error.position
    if error.retry_after is not None:
        known["retry_after"] = min(error.retry_after, _LONGEST)
    if isinstance(error, LeaseLost):
        known["reason"] = error.reason
    return known


def _holder(holder: Holder) -> dict[str, Any]:
    """A holder, without its lease's fingerprint and token."""
    return {
        "owner": holder.owner,
        "note": holder.note,
        "state": holder.state,
        "units": holder.units,
        "slots": list(holder.slots),
        "held_for": holder.held_for,
        "expires_in": holder.expires_in,
    }
