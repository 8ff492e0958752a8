"""Leases in Flask: errors as problem details (RFC 9457). The lock itself is `Lock.wraps` around a view."""

from collections.abc import Callable
from typing import Any

from dibs.contrib import needs
from dibs.contrib.problems import MEDIA_TYPE, Kind, kinds, problem
from dibs.errors import DibsError

try:
    from flask import Blueprint, Flask, Response, json, request
except ModuleNotFoundError as _error:
    raise needs("Flask", "flask") from _error


def problems(app: Flask | Blueprint, *, status: int = 409, disclose: bool = False) -> None:
    """Let an application, or a blueprint, answer our errors: `problems(app)`.

    `AcquireTimeout` becomes `status` with `Retry-After` (5 s at most), `BackendUnavailable` 503 with
    `Retry-After`, `LeaseLost` 500, as the view may have done part of its work, and `InvalidName` 400. The
    body is `application/problem+json`: what is wrong, the queue position, when to try again. With
    `disclose=True` it also names the key and its holders (hosts, processes and notes; never a lease id).
    Raises `ValueError` for a status that is no error.
    """
    for error, kind in kinds(status).items():
        app.register_error_handler(error, _handler(kind, disclose))


def _handler(kind: Kind, disclose: bool) -> Callable[[Any], Response]:
    def answer(error: DibsError) -> Response:
        body, headers = problem(kind, error, request.path, disclose=disclose)
        return Response(json.dumps(body), kind.status, headers, mimetype=MEDIA_TYPE)

    return answer
