"""Errors over HTTP: `application/problem+json` (RFC 9457)."""

from collections.abc import Sequence
from math import ceil

from msgspec import Struct
from starlette.responses import Response

from dibs.core.names import shown
from dibs.server.api.responses import Header, bytes_response, encode
from dibs.stores.http import wire


class ProblemKind(Struct, frozen=True):
    """A kind of problem, and what to do about it."""

    type: str
    title: str
    status: int
    advice: str
    """What the caller can do; served at its type."""


_KINDS: dict[str, tuple[int, str, str]] = {
    "malformed": (400, "Bad request", "Correct the request. Repeating it fails the same way."),
    "unauthenticated": (
        401,
        "Authentication required",
        "Send `Authorization: Bearer` with an API key, or with a token from /v1/token.",
    ),
    "forbidden": (403, "Permission denied", "Use an API key with the scope that the detail names."),
    "csrf": (
        403,
        "Request from another site",
        "A browser session can only make changes from the dashboard. Programs send an API key.",
    ),
    "not-held": (404, "Not held", "It is free, or this API key has no permission to read it."),
    "no-such-key": (404, "API key not found", "GET /v1/keys lists the keys."),
    "no-such-restriction": (
        404,
        "Restriction not found",
        "GET /v1/restrict lists the restrictions.",
    ),
    "no-such-route": (404, "Not found", "/v1/openapi.json describes all routes."),
    "method": (405, "Method not allowed", "The Allow header lists the methods."),
    "late": (408, "Request timeout", "Send the whole request faster."),
    "held": (
        409,
        "Resource is held",
        "Try again after Retry-After, or wait in the queue with `wait=`.",
    ),
    "waiting": (409, "Not held yet", "This lease id is still waiting in the queue."),
    "too-large": (
        409,
        "Capacity exceeded",
        "Waiting does not help. Ask for fewer units, or declare a larger capacity.",
    ),
    "unsatisfiable": (
        409,
        "No placement allowed",
        "Allow more regions or providers, deny fewer, or add a placement to the service.",
    ),
    "conflict": (409, "Conflicting update", "Read the current state, then try again."),
    "lost": (410, "Lease ended", "Stop the work that it protects. Acquire again with a new id."),
    "body-too-large": (413, "Body too large", "GET /v1/limits shows the limit."),
    "media-type": (415, "Unsupported media type", "Send application/json or application/msgpack."),
    "limit": (429, "Quota exceeded", "Use less, or wait. GET /v1/limits shows all limits."),
    "headers-too-large": (431, "Headers too large", "GET /v1/limits shows the limit."),
    "bug": (500, "Internal server error", "This is a bug. The server log has the details."),
    "overloaded": (503, "Server overloaded", "Try again after Retry-After."),
    "draining": (503, "Server shutting down", "Send the request again. Leases are not affected."),
    "moving": (
        503,
        "Directory is moving",
        "Its locks are moving to another store. Holders go on. Acquire again after Retry-After.",
    ),
    "unavailable": (
        503,
        "Store unavailable",
        "The command may or may not have been applied. Send it again, with the same id if you gave one.",
    ),
}

PROBLEM_KINDS = {
    name: ProblemKind(f"/problems/{name}", title, status, advice)
    for name, (status, title, advice) in _KINDS.items()
}


class ApiProblem(Exception):
    """Ends a request. `kind` is a key of `PROBLEM_KINDS`; `detail` describes this occurrence."""

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        headers: Sequence[Header] = (),
        retry_after: float | None = None,
        holders: tuple[wire.Holder, ...] = (),
        position: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind: str = kind
        self.detail: str = detail
        self.headers: Sequence[Header] = headers
        self.retry_after: float | None = retry_after
        self.holders: tuple[wire.Holder, ...] = holders
        self.position: int | None = position

    @property
    def status(self) -> int:
        """HTTP status of its kind."""
        return PROBLEM_KINDS[self.kind].status

    def shape(self) -> wire.Problem:
        """The response body."""
        known = PROBLEM_KINDS[self.kind]
        return wire.Problem(
            known.type,
            known.title,
            known.status,
            self.detail,
            self.retry_after,
            self.holders,
            self.position,
        )

    def response(self) -> Response:
        """The response."""
        headers = [*self.headers]
        if self.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, ceil(self.retry_after))))
        body = encode(self.shape())
        return bytes_response(body, "application/problem+json", self.status, *headers)


def forbidden(scope: str, name: bytes) -> ApiProblem:
    """A 403 that reveals only the missing scope."""
    return ApiProblem("forbidden", lacking(scope, name))


def lacking(scope: str, name: bytes) -> str:
    """Name the missing scope and directory."""
    folder, slash, _ = name.rpartition(b"/")
    where = f"the directory {shown(folder + slash)}" if slash else "names outside of any directory"
    return f"requires an API key with scope {scope} for {where}"


def too_often() -> ApiProblem:
    """A key has ended others' leases more often than the audit takes lines."""
    return ApiProblem(
        "limit", "this key has forced too many releases within a minute", retry_after=60
    )


def unauthenticated(detail: str, *, invalid: bool = True) -> ApiProblem:
    """A 401. `invalid`: the caller did send a credential."""
    challenge = b'Bearer error="invalid_token"' if invalid else b"Bearer"
    return ApiProblem("unauthenticated", detail, headers=((b"www-authenticate", challenge),))
