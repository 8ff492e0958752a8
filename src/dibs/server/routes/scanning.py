"""`/v1/scan`: keys in use, of every kind, with their queues, for `https://` clients and the dashboard."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field
from starlette.responses import Response

from dibs.model import Status
from dibs.server.api.problems import ApiProblem
from dibs.server.api.routing import SIGNED_IN, Operation
from dibs.server.api.schemas import Names, Strict
from dibs.server.call import Call
from dibs.server.reach import HEADS, names_of, page_json, prefixes_of, read
from dibs.stores.http.names import decoded, encoded
from dibs.stores.http.wire import StatusPage, to_wire


class ScanQuery(Strict, frozen=True):
    """What keys begin with, or names of every kind; and after which key the page begins, in base64."""

    prefix: Annotated[str, Meta(max_length=1024, description="What keys begin with, in base64")] = (
        ""
    )
    names: Names = ""
    cursor: Annotated[str, Meta(max_length=1024)] = ""
    limit: Annotated[int, Meta(ge=1)] = 100
    observed: Annotated[
        bool, Meta(description="Tell what this server has seen of the leases too")
    ] = False


class Observed(Struct, frozen=True):
    """What a server has seen of a lease."""

    renewals: int
    ttl: float | None
    """What it was granted or renewed for; null where that is not known."""


class ObservedPage(StatusPage, frozen=True):
    """Some of the keys in use, and what this server has seen of their leases, by their fingerprints."""

    leases: dict[str, Observed] = field(default_factory=dict[str, Observed])


async def scan(call: Call) -> Response:
    """A page of what may be seen."""
    asked = call.query(ScanQuery)
    try:
        prefixes, cursor = _prefixes(asked), decoded(asked.cursor) or None
    except ValueError:
        raise ApiProblem("malformed", "`prefix` and `cursor` must be URL-safe base64") from None
    limit = min(asked.limit, call.service.limits.max_page)
    found = await read(call.service, call.principal, prefixes, cursor, limit)
    following = None if found.cursor is None else encoded(found.cursor)
    observed = _observed(call, found.items) if asked.observed else UNSET
    return await page_json("items", found.items, to_wire, _Rest(following, observed))


class _Rest(Struct, frozen=True):
    cursor: str | None
    leases: dict[str, Observed] | UnsetType


def _prefixes(asked: ScanQuery) -> Sequence[bytes]:
    if not asked.names:
        return prefixes_of(decoded(asked.prefix))
    if asked.prefix:
        raise ApiProblem("malformed", "give either `prefix` (of keys) or `names`, not both")
    names = names_of(asked.names)
    return [head + names for head in HEADS]


def _observed(call: Call, items: Iterable[Status]) -> dict[str, Observed]:
    found: dict[str, Observed] = {}
    for status in items:
        seen = call.service.activity.keys.get(status.key)
        if seen is not None:
            for lease, hold in seen.holds.items():
                found[lease] = Observed(hold.renewals, hold.ttl or None)
    return found


ROUTES = (
    Operation(
        method="GET",
        path="/v1/scan",
        needs=SIGNED_IN,
        handler=scan,
        summary="Keys in use, of every kind, that this API key has permission to read",
        query=ScanQuery,
        answers={200: (StatusPage, ObservedPage)},
    ),
)
