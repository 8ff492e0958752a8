"""What goes wrong, as HTTP tells it: `application/problem+json` (RFC 9457)."""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import msgspec

from dibs.backends.http import wire, wire_service
from dibs.core.names import shown
from dibs.server.answers import Answer, Header


class Kind(NamedTuple):
    """One way to fail."""

    status: int
    title: str
    advice: str
    """What it means and what to do, for whoever looks its type up."""


KINDS: dict[str, Kind] = {
    "malformed": Kind(400, "The request can't be read", "Mend the request; again it fails alike."),
    "unauthenticated": Kind(
        401, "Who are you?", "Send `Authorization: Bearer` with an API key or a token of ~60 s."
    ),
    "forbidden": Kind(403, "This key may not do that", "Ask for a key with the scope it names."),
    "csrf": Kind(
        403,
        "Not from that page",
        "A browser's session changes things by the dashboard's own pages only; else send a key.",
    ),
    "not-held": Kind(404, "Nobody holds it", "It is free, or this key may not see it."),
    "no-such-key": Kind(404, "There is no such key", "See /v1/keys for those that there are."),
    "no-such-restriction": Kind(
        404, "There is no such restriction", "See /v1/restrict for those that there are."
    ),
    "no-such-route": Kind(404, "There is nothing here", "See /v1/openapi.json."),
    "method": Kind(405, "Not by this method", "The header Allow names those that there are."),
    "late": Kind(408, "The request took too long to arrive", "Send it again, faster."),
    "held": Kind(409, "It is held", "Try again after Retry-After, or wait in line with `wait=`."),
    "waiting": Kind(409, "It is not held yet", "This id waits in line for it."),
    "too-large": Kind(
        409, "More than there is", "No wait helps: ask for fewer units, or declare more capacity."
    ),
    "unsatisfiable": Kind(
        409, "No placement is left", "Allow more, deny less, or give the service another placement."
    ),
    "conflict": Kind(409, "Somebody else was faster", "Read it again, then try again."),
    "lost": Kind(
        410, "The lease has ended", "Stop what it protects; acquire anew, with another id."
    ),
    "body-too-large": Kind(413, "The body is too large", "/v1/limits tells how large it may be."),
    "media-type": Kind(415, "Not in this format", "Send application/json or application/msgpack."),
    "limit": Kind(
        429, "This key has as much as it may have", "Release some, or wait; see /v1/limits."
    ),
    "bug": Kind(500, "The server failed", "This is a bug; the server's log says more."),
    "overloaded": Kind(503, "Too much at a time", "Try again after Retry-After."),
    "draining": Kind(503, "This server is about to stop", "Go on with another; leases stay."),
    "moving": Kind(
        503, "Directory is moving", "Its locks move to another store: try again after Retry-After."
    ),
    "unavailable": Kind(
        503,
        "The store can't be reached",
        "What was asked may or may not be done: send it again, with the same id, if you brought one.",
    ),
}


class Problem(Exception):
    """Ends a request. `kind` is one of `KINDS`; `detail` says what happened to this one."""

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

    def shape(self) -> wire_service.Problem:
        """What its body says."""
        known = KINDS[self.kind]
        return wire_service.Problem(
            f"/problems/{self.kind}",
            known.title,
            known.status,
            self.detail,
            self.retry_after,
            self.holders,
            self.position,
        )

    def answer(self) -> Answer:
        """The response."""
        headers = [(b"content-type", b"application/problem+json"), *self.headers]
        if self.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, ceil(self.retry_after))))
        return Answer(KINDS[self.kind].status, msgspec.json.encode(self.shape()), headers)


def forbidden(scope: str, name: bytes) -> Problem:
    """What a key lacks, and nothing else is told."""
    return Problem("forbidden", lacking(scope, name))


def lacking(scope: str, name: bytes) -> str:
    """Which scope is missing, for which directory."""
    folder, slash, _ = name.rpartition(b"/")
    where = f"the directory {shown(folder + slash)}" if slash else "what lies in no directory"
    return f"this needs a key with the scope {scope} for {where}"


def unauthenticated(told: str, *, invalid: bool = True) -> Problem:
    """Nobody is known by what the caller has brought, if it has brought anything."""
    challenge = b'Bearer error="invalid_token"' if invalid else b"Bearer"
    return Problem("unauthenticated", told, headers=((b"www-authenticate", challenge),))
