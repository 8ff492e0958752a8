"""`/v1/contention`: how long is waited and held, by families of names, as this server has seen it."""

from msgspec import Struct

from dibs.backends.http.names import encoded
from dibs.server.answers import Answer, json
from dibs.server.call import Call
from dibs.server.observatory.families import Family
from dibs.server.observatory.histogram import STEPS, Histogram, bound
from dibs.server.principal import Scope
from dibs.server.routing import SIGNED_IN, Route


class Durations(Struct, frozen=True):
    """How long something took, how often."""

    counts: tuple[int, ...]
    """How many there are in each step; see `bounds`."""
    count: int
    p50: float | None
    p99: float | None
    longest: float


class FamilyShown(Struct, frozen=True):
    """Names that belong together, and what happened to them."""

    kind: str
    name: str
    """A first directory, or a name with its digits as `#`, in URL-safe base64; empty: all others."""
    grants: int
    refused: int
    """Tries of what was held."""
    expired: int
    waited: Durations
    held: Durations
    ttl: float | None
    """Of the latest grant; null where it is not known."""
    closest: float | None
    """The greatest part of its ttl that a lease went without a renewal, before it got one or was released."""


class Contention(Struct, frozen=True):
    """All families that may be seen, since this server has started."""

    bounds: tuple[float, ...]
    """Where the steps end, in seconds; the last has no end."""
    families: tuple[FamilyShown, ...]


async def contention(call: Call) -> Answer:
    """What this server has seen."""
    families = call.service.observatory.picture.families
    seen = [each for each in families if call.principal.may(Scope.READ, each.name)]
    return json(Contention(_BOUNDS, tuple(map(_shown, seen))))


_BOUNDS = tuple(bound(step) for step in range(STEPS - 1))


def _shown(family: Family) -> FamilyShown:
    return FamilyShown(
        family.kind,
        encoded(family.name),
        family.grants,
        family.refused,
        family.expired,
        _durations(family.waited),
        _durations(family.held),
        family.ttl or None,
        round(family.closest, 4) if family.closest else None,
    )


def _durations(found: Histogram) -> Durations:
    p50, p99 = found.quantile(0.5), found.quantile(0.99)
    return Durations(tuple(found.counts), found.count, p50, p99, round(found.longest, 6))


ROUTES = (
    Route(
        method="GET",
        path="/v1/contention",
        needs=SIGNED_IN,
        handler=contention,
        summary="How long is waited and held, by families of names, as this server has seen it",
        answers={200: Contention},
    ),
)
