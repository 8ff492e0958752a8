"""What went wrong, as HTTP tells it: RFC 9457's problem details."""

from collections.abc import Callable, Coroutine
from math import ceil
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response

from dibs import (
    AcquireTimeout,
    BackendUnavailable,
    DibsError,
    Holder,
    InvalidName,
    LeaseLost,
)

type Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]

_STATUS = "dibs.status"

_KINDS: dict[type[DibsError], tuple[str, str, int]] = {
    AcquireTimeout: ("busy", "It is in use", 409),
    BackendUnavailable: ("unavailable", "It can't be told whether it is in use", 503),
    LeaseLost: ("lost", "The lease was lost while the request was served", 500),
    InvalidName: ("name", "It can't be named after this request", 400),
}
"""The end of the problem's type, its title, and its status."""

_PASSING = frozenset({"busy", "unavailable"})
"""What may be better after a while."""


def problems(*, status: int = 409, disclose: bool = False) -> dict[int | type[Exception], Handler]:
    """Exception handlers: `FastAPI(exception_handlers=problems())`.

    Raises `ValueError` for a status that tells no failure.

    `AcquireTimeout` is answered with `status` and `Retry-After`, `BackendUnavailable` with 503 and
    `Retry-After`, `LeaseLost` with 500, as nobody knows what the handler had done by then,
    and `InvalidName`, for what a client of yours put into a path, with 400. The body is
    `application/problem+json`: what is wrong, how many are ahead, when to try again. With `disclose=True`,
    for those who may know, it tells the key, and who holds it: hosts, processes, notes (never a lease's id).
    """
    check_status(status)

    def handler(kind: str, title: str, usual: int) -> Handler:
        async def answer(request: Request, error: DibsError) -> Response:
            code = usual if kind != "busy" else request.scope.get(_STATUS, status)
            body = {
                "type": f"urn:dibs:problem:{kind}",
                "title": title,
                "status": code,
                "detail": str(error) if disclose else f"{title}.",
                "instance": request.url.path,
                **_about(error, disclose),
            }
            headers = {"Retry-After": str(_patience(error))} if kind in _PASSING else {}
            return JSONResponse(body, code, headers, media_type="application/problem+json")

        return answer

    return {error: handler(*kind) for error, kind in _KINDS.items()}


def check_status(status: object) -> None:
    """Raises `ValueError` for what is no status of a failure."""
    if type(status) is not int or not 400 <= status <= 599:
        raise ValueError(f"status is {status!r}: give one from 400 to 599")


def answer_with(connection: HTTPConnection, status: int) -> None:
    """Answer contention with another status, for this request."""
    connection.scope[_STATUS] = status


def _patience(error: DibsError) -> int:
    """Whole seconds after which to try again."""
    return max(1, ceil(error.retry_after or 0))


def _about(error: DibsError, disclose: bool) -> dict[str, Any]:
    """What is known besides."""
    known: dict[str, Any] = {}
    if disclose and error.key is not None:
        known["key"] = error.key.decode("utf-8", "backslashreplace")
    if disclose and error.holders:
        known["holders"] = [_holder(each) for each in error.holders]
    if error.position is not None:
        known["position"] = error.position
    if error.retry_after is not None:
        known["retry_after"] = error.retry_after
    if isinstance(error, LeaseLost):
        known["reason"] = error.reason
    return known


def _holder(holder: Holder) -> dict[str, Any]:
    """A holder, without what would tell its lease."""
    return {
        "owner": holder.owner,
        "note": holder.note,
        "state": holder.state,
        "units": holder.units,
        "slots": list(holder.slots),
        "held_for": holder.held_for,
        "expires_in": holder.expires_in,
    }
