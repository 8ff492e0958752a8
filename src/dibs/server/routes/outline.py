"""`/v1/outline`: about how many keys are in use, and where to look in a long list of them."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from dibs.backends.http.names import encoded
from dibs.core.names import MAX_NAME, Kind
from dibs.server.answers import Answer, json
from dibs.server.call import Call
from dibs.server.reach import heads_of, names_of, stretches
from dibs.server.routes.shapes import Names, Strict
from dibs.server.routing import SIGNED_IN, Route

_LAST = b"\xff" * (MAX_NAME + 1)
"""After whatever a key may go on with."""


class OutlineQuery(Strict, frozen=True):
    """Which keys, and how far apart those are that are told."""

    names: Names = ""
    kind: Kind | None = None
    every: Annotated[int, Meta(ge=100, le=100_000)] = 200


class Outline(Struct, frozen=True):
    """A list that is too long to be read, in short: as far as this server has seen it."""

    count: int
    keys: tuple[str, ...]
    """Each so-many-th of them, in their order: `cursor`s for `/v1/scan`."""


async def outline(call: Call) -> Answer:
    """From this server's picture, which may be a little old; what is held `/v1/scan` tells."""
    asked = call.query(OutlineQuery)
    names = names_of(asked.names)
    begins = stretches(call.principal, (head + names for head in heads_of(asked.kind)))
    async with call.service.accounts.reading.turn(call.principal.key_id):
        keys = await call.service.observatory.survey.keys()
    count, told = _cut(keys, begins, asked.every)
    return json(Outline(count, tuple(map(encoded, told))))


def _cut(keys: Sequence[bytes], begins: Iterable[bytes], every: int) -> tuple[int, Sequence[bytes]]:
    """How many of them begin with one of these, and each so-many-th of those. Both are in order."""
    count, told = 0, list[bytes]()
    for each in begins:
        first, end = bisect_left(keys, each), bisect_right(keys, each + _LAST)
        told += keys[first + (-count - 1) % every : end : every]
        count += end - first
    return count, told


ROUTES = (
    Route(
        method="GET",
        path="/v1/outline",
        needs=SIGNED_IN,
        handler=outline,
        summary="About how many keys are in use, and cursors to go anywhere in a list of them",
        query=OutlineQuery,
        answers={200: Outline},
    ),
)
