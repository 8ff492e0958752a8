"""`/v1/queues`: where somebody waits, the longest line first, for those who look for what is slow."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from dibs.model import Inspect, Status
from dibs.runtime.port import TimedReply
from dibs.server.activity import in_steps
from dibs.server.api.responses import json_response
from dibs.server.api.routing import SIGNED_IN, Operation
from dibs.server.api.schemas import Names, Strict
from dibs.server.auth.policy import Scope
from dibs.server.call import Call
from dibs.server.reach import ask_in_parts, bounded, names_of
from dibs.stores.http.wire import Status as Shown
from dibs.stores.http.wire import to_wire

MOST = 200
"""Lines that are told at a time."""


class QueuesQuery(Strict, frozen=True):
    """Whose lines are told."""

    names: Names = ""
    limit: Annotated[int, Meta(ge=1, le=MOST)] = 50


class Queues(Struct, frozen=True):
    """The longest lines that may be seen, as they are now."""

    items: tuple[Shown, ...]
    count: int
    """How many lines there are, as far as this server has seen."""


async def queues(call: Call) -> Response:
    """Which lines there are this server has seen; how long they are the store is asked."""
    asked = call.query(QueuesQuery)
    names = names_of(asked.names)
    service, who = call.service, call.principal
    async with service.quotas.reading.turn(who.key_id, asked.limit):
        lines = await _lines(call, names)
        asks = [Inspect(key) for key in lines[: asked.limit]]
        told = bounded(await ask_in_parts(service, who, asks))
    found = [each.reply for each in told if isinstance(each, TimedReply)]
    now = [each for each in found if isinstance(each, Status) and each.waiting]
    now.sort(key=lambda status: (-status.waiting, status.key))
    return json_response(Queues(tuple(map(to_wire, now)), len(lines)))


async def _lines(call: Call, names: bytes) -> Sequence[bytes]:
    """Where somebody waits, the longest line first, as far as the caller may see it."""
    found: list[bytes] = []
    who = call.principal
    async for some in in_steps(await call.service.activity.queues.longest_first()):
        found += [
            key
            for _, key in some
            if (name := key.partition(b":")[2]).startswith(names) and who.may(Scope.READ, name)
        ]
    return found


ROUTES = (
    Operation(
        method="GET",
        path="/v1/queues",
        needs=SIGNED_IN,
        handler=queues,
        summary="Queues, longest first",
        query=QueuesQuery,
        answers={200: Queues},
    ),
)
