"""`/v1/queues`: where somebody waits, the longest line first, for those who look for what is slow."""

from typing import Annotated

from msgspec import Meta, Struct

from leasehold.backends.http.names import decoded
from leasehold.backends.http.wire import Status as Shown
from leasehold.model import Inspect, Status
from leasehold.runtime.port import Answer as Told
from leasehold.server.answers import Answer, json
from leasehold.server.call import Call
from leasehold.server.people import status_for_people
from leasehold.server.principal import Scope
from leasehold.server.problems import Problem
from leasehold.server.routes.shapes import Strict
from leasehold.server.routing import SIGNED_IN, Route

MOST = 200
"""Lines that are told at a time."""


class QueuesQuery(Strict, frozen=True):
    """Whose lines are told."""

    names: Annotated[str, Meta(max_length=1024, description="What names begin with, in base64")] = (
        ""
    )
    limit: Annotated[int, Meta(ge=1, le=MOST)] = 50


class Queues(Struct, frozen=True):
    """The longest lines that may be seen, as they are now."""

    items: tuple[Shown, ...]
    count: int
    """How many lines there are, as far as this server has seen."""


async def queues(call: Call) -> Answer:
    """Which lines there are this server has seen; how long they are the store is asked."""
    asked = call.query(QueuesQuery)
    try:
        names = decoded(asked.names)
    except ValueError:
        raise Problem("malformed", "names is URL-safe base64") from None
    service, who = call.service, call.principal
    lines = [
        (-length, key)
        for key, length in service.observatory.picture.lines()
        if (name := key.partition(b":")[2]).startswith(names) and who.may(Scope.READ, name)
    ]
    lines.sort()
    if not lines:
        return json(Queues((), 0))
    with service.accounts.reading:
        asks = [Inspect(key) for _, key in lines[: asked.limit]]
        told = await service.ask_all(who, asks) if asks else ()
    found = [each.reply for each in told if isinstance(each, Told)]
    now = [each for each in found if isinstance(each, Status) and each.waiting]
    now.sort(key=lambda status: (-status.waiting, status.key))
    return json(Queues(tuple(map(status_for_people, now)), len(lines)))


ROUTES = (
    Route(
        method="GET",
        path="/v1/queues",
        needs=SIGNED_IN,
        handler=queues,
        summary="Where somebody waits, the longest lines first",
        query=QueuesQuery,
        answers={200: Queues},
    ),
)
