"""`/v1/scan`: keys in use, of every kind, with their queues, for `https://` clients."""

from typing import Annotated

from msgspec import Meta

from leasehold.backends.http.names import decoded, encoded
from leasehold.backends.http.wire import StatusPage
from leasehold.server.answers import Answer, json
from leasehold.server.call import Call
from leasehold.server.people import status_for_people
from leasehold.server.problems import Problem
from leasehold.server.reach import prefixes_of, read
from leasehold.server.routes.shapes import Strict
from leasehold.server.routing import SIGNED_IN, Route


class ScanQuery(Strict, frozen=True):
    """What keys begin with, and after which one the page begins; both in base64."""

    prefix: Annotated[str, Meta(max_length=1024)] = ""
    cursor: Annotated[str, Meta(max_length=1024)] = ""
    limit: Annotated[int, Meta(ge=1)] = 100


async def scan(call: Call) -> Answer:
    """A page of what may be seen."""
    asked = call.query(ScanQuery)
    try:
        prefix, cursor = decoded(asked.prefix), decoded(asked.cursor) or None
    except ValueError:
        raise Problem("malformed", "prefix and cursor are URL-safe base64") from None
    limit = min(asked.limit, call.service.limits.max_page)
    found = await read(call.service, call.principal, prefixes_of(prefix), cursor, limit)
    following = None if found.cursor is None else encoded(found.cursor)
    return json(StatusPage(tuple(map(status_for_people, found.items)), following))


ROUTES = (
    Route(
        method="GET",
        path="/v1/scan",
        needs=SIGNED_IN,
        handler=scan,
        summary="Keys in use, of every kind, that this key may see",
        query=ScanQuery,
        answers={200: StatusPage},
    ),
)
