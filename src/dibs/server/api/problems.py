"""Errors over HTTP: `application/problem+json` (RFC 9457)."""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from starlette.responses import Response

from dibs.core.names import shown
from dibs.server.api.responses import Header, bytes_response, encode
from dibs.stores.http import wire


class Kind(NamedTuple):
    """A kind of problem."""

    status: int
    title: str
    advice: str
    """What the caller can do; served at `/problems/{kind}`."""


KINDS: dict[str, Kind] = {
    "malformed": Kind(400, "Bad request", "Correct the request. Repeating it fails the same way."),
    "unauthenticated": Kind(
        401,
        "Authentication required",
        "Send `Authorization: Bearer` with an API key, or with a token from /v1/token.",
    ),
    "forbidden": Kind(
        403, "Permission denied", "Use an API key with the scope that the detail names."
    ),
    "csrf": Kind(
        403,
        "Request from another site",
        "A browser session can only make changes from the dashboard. Programs send an API key.",
    ),
    "not-held": Kind(404, "Not held", "It is free, or this API key has no permission to read it."),
    "no-such-key": Kind(404, "API key not found", "GET /v1/keys lists the keys."),
    "no-such-restriction": Kind(
        404, "Restriction not found", "GET /v1/restrict lists the restrictions."
    ),
    "no-such-route": Kind(404, "Not found", "/v1/openapi.json describes all routes."),
    "method": Kind(405, "Method not allowed", "The Allow header lists the methods."),
    "late": Kind(408, "Request timeout", "Send the whole request faster."),
    "held": Kind(
        409, "Resource is held", "Try again after Retry-After, or wait in the queue with `wait=`."
    ),
    "waiting": Kind(409, "Not held yet", "This lease id is still waiting in the queue."),
    "too-large": Kind(
        409,
        "Capacity exceeded",
        "Waiting does not help. Ask for fewer units, or declare a larger capacity.",
    ),
    "unsatisfiable": Kind(
        409,
        "No placement allowed",
        "Allow more regions or providers, deny fewer, or add a placement to the service.",
    ),
    "conflict": Kind(409, "Conflicting update", "Read the current state, then try again."),
    "lost": Kind(
        410, "Lease ended", "Stop the work that it protects. Acquire again with a new id."
    ),
    "body-too-large": Kind(413, "Body too large", "GET /v1/limits shows the limit."),
    "media-type": Kind(
        415, "Unsupported media type", "Send application/json or application/msgpack."
    ),
    "limit": Kind(429, "Quota exceeded", "Use less, or wait. GET /v1/limits shows all limits."),
    "headers-too-large": Kind(431, "Headers too large", "GET /v1/limits shows the limit."),
    "bug": Kind(500, "Internal server error", "This is a bug. The server log has the details."),
    "overloaded": Kind(503, "Server overloaded", "Try again after Retry-After."),
    "draining": Kind(
        503, "Server shutting down", "Send the request again. Leases are not affected."
    ),
    "moving": Kind(
        503,
        "Directory is moving",
        "Its locks are moving to another store. Try again after Retry-After.",
    ),
    "unavailable": Kind(
        503,
        "Store unavailable",
        "The command may or may not have been applied. Send it again, with the same id if you gave one.",
    ),
}


class Problem(Exception):
    """Ends a request. `kind` is a key of `KINDS`; `detail` describes this occurrence."""

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
        self.kind = kind
        self.detail = detail
        self.headers = headers
        self.retry_after = retry_after
        self.holders = holders
        self.position = position

    @property
    def status(self) -> int:
        """Its HTTP status."""
        return KINDS[self.kind].status

    def shape(self) -> wire.Problem:
        """The response body."""
        known = KINDS[self.kind]
        return wire.Problem(
            f"/problems/{self.kind}",
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


def forbidden(scope: str, name: bytes) -> Problem:
    """A 403 that reveals only the missing scope."""
    return Problem("forbidden", lacking(scope, name))


def lacking(scope: str, name: bytes) -> str:
    """Name the missing scope and directory."""
    folder, slash, _ = name.rpartition(b"/")
    where = f"the directory {shown(folder + slash)}" if slash else "names outside of any directory"
    return f"requires an API key with scope {scope} for {where}"


def too_often() -> Problem:
    """A key has ended others' leases more often than the audit takes lines."""
    return Problem("limit", "this key has forced too many releases within a minute", retry_after=60)


def unauthenticated(told: str, *, invalid: bool = True) -> Problem:
    """A 401. `invalid`: the caller did send a credential."""
    challenge = b'Bearer error="invalid_token"' if invalid else b"Bearer"
    return Problem("unauthenticated", told, headers=((b"www-authenticate", challenge),))
