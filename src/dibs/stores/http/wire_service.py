"""What else the service answers: pages of keys, itself and who asks, and what went wrong.

`GET /v1/scan?prefix=&cursor=&limit=` gives a `StatusPage`: `prefix` and `cursor` are the beginnings of keys,
spelt as keys are (`cursor` is that of the page before, or left out). `GET /v1/about` gives an `About`,
and `GET /v1/limits` among others the `Ttls`. A `Problem` is the answer to any request that fails.
"""

from msgspec import Struct

from dibs.stores.http.wire import FORMAT, Holder, Status


class StatusPage(Struct, frozen=True):
    """Some of the keys in use, and where to go on: None after the last (`GET /v1/scan`)."""

    items: tuple[Status, ...]
    cursor: str | None = None


class Promises(Struct, frozen=True):
    """See `dibs.model.Capabilities`: what all stores of the service promise."""

    scope: str
    clock: bool
    durable: bool
    fenced: bool
    notifies: bool
    survives: tuple[str, ...] = ()


class About(Struct, frozen=True):
    """What the service is, and who asks (`GET /v1/about`, for every key)."""

    server: str
    version: str
    promises: Promises
    key: str
    """The API key's id, which is no secret."""
    name: str
    scopes: tuple[str, ...]
    directories: tuple[str, ...]
    """Where those scopes hold, each spelt as keys are; an empty one is everywhere."""
    format: int = FORMAT


class Ttls(Struct, frozen=True):
    """Which ttls the service takes, in seconds: a part of `GET /v1/limits`, for every key."""

    min_ttl: float
    max_ttl: float


class Problem(Struct, omit_defaults=True, frozen=True):
    """What went wrong, as `application/problem+json` (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    retry_after: float | None = None
    holders: tuple[Holder, ...] = ()
    position: int | None = None
