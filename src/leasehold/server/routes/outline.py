"""`/v1/outline`: about how many keys are in use, and where to look in a long list of them."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from leasehold.backends.http.names import decoded, encoded
from leasehold.server.answers import Answer, json
from leasehold.server.call import Call
from leasehold.server.principal import Principal, Scope
from leasehold.server.problems import Problem
from leasehold.server.reach import HEADS
from leasehold.server.routes.shapes import KindName, Strict
from leasehold.server.routing import SIGNED_IN, Route


class OutlineQuery(Strict, frozen=True):
    """Which keys, and how far apart those are that are told."""

    names: Annotated[str, Meta(max_length=1024, description="What names begin with, in base64")] = (
        ""
    )
    kind: KindName | None = None
    every: Annotated[int, Meta(ge=100, le=100_000)] = 200


class Outline(Struct, frozen=True):
    """A list that is too long to be read, in short: as far as this server has seen it."""

    count: int
    keys: tuple[str, ...]
    """Each so-many-th of them, in their order: `cursor`s for `/v1/scan`."""


async def outline(call: Call) -> Answer:
    """From this server's picture, which may be a little old; what is held `/v1/scan` tells."""
    asked = call.query(OutlineQuery)
    try:
        names = decoded(asked.names)
    except ValueError:
        raise Problem("malformed", "names is URL-safe base64") from None
    heads = HEADS if asked.kind is None else (asked.kind.encode() + b":",)
    begins = tuple(head + names for head in heads)
    keys = call.service.observatory.picture.keys()
    # they may be so many that others would have to wait
    found = await asyncio.to_thread(_found, keys, begins, call.principal)
    told = found[asked.every - 1 :: asked.every]
    return json(Outline(len(found), tuple(map(encoded, told))))


def _found(keys: Sequence[bytes], begins: tuple[bytes, ...], who: Principal) -> list[bytes]:
    if not who.may_everywhere(Scope.READ):
        keys = [key for key in keys if who.may(Scope.READ, key.partition(b":")[2])]
    return sorted(key for key in keys if key.startswith(begins))


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
