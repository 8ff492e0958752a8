"""What the service says of itself: its limits, its description, and what each problem means."""

from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec
from msgspec import Struct

from dibs.server.answers import Answer, json
from dibs.server.call import Call
from dibs.server.limits import Limits
from dibs.server.problems import KINDS, Problem
from dibs.server.routing import PUBLIC, SIGNED_IN, Route
from dibs.stores.http.names import encoded
from dibs.stores.http.wire import About, Promises

RELEASE = version("dibs")
"""The one that runs, also when another has been installed meanwhile."""


class ProblemKind(Struct, frozen=True):
    """A kind of problem, and what to do about it."""

    type: str
    title: str
    status: int
    advice: str


async def about(call: Call) -> Answer:
    """What the service is, and who asks."""
    service, who = call.service, call.principal
    promised = service.runtime.capabilities
    promises = Promises(
        promised.scope,
        promised.clock,
        promised.durable,
        promised.fenced,
        promised.notifies,
        tuple(sorted(promised.survives)),
    )
    return json(
        About(
            service.server_id,
            RELEASE,
            promises,
            who.key_id,
            who.name,
            tuple(sorted(who.scopes)),
            tuple(encoded(prefix) for prefix in who.prefixes),
        )
    )


async def limits(call: Call) -> Answer:
    """How much there may be of anything."""
    return json(call.service.limits)


async def problem(call: Call) -> Answer:
    """What a problem's type means."""
    word = call.params["word"]
    kind = KINDS.get(word)
    if kind is None:
        raise Problem("no-such-route", "unknown problem type")
    return json(ProblemKind(f"/problems/{word}", kind.title, kind.status, kind.advice))


async def description(_: Call) -> Answer:
    """All of the service, as OpenAPI 3.1."""
    return Answer(200, _written(), [(b"content-type", b"application/json")])


@cache
def _written() -> bytes:
    from dibs.server.openapi import described
    from dibs.server.routes import ROUTES

    return msgspec.json.encode(described(ROUTES))


ROUTES = (
    Route(
        method="GET",
        path="/v1/about",
        needs=SIGNED_IN,
        handler=about,
        summary="What this service is and promises, and whose key this is",
        answers={200: About},
    ),
    Route(
        method="GET",
        path="/v1/limits",
        needs=SIGNED_IN,
        handler=limits,
        summary="All limits, in total and per API key",
        answers={200: Limits},
    ),
    Route(
        method="GET",
        path="/v1/openapi.json",
        needs=PUBLIC,
        handler=description,
        summary="This description",
        answers={200: dict[str, Any]},
    ),
    Route(
        method="GET",
        path="/problems/{word}",
        needs=PUBLIC,
        handler=problem,
        summary="What a problem's type means, and what to do",
        answers={200: ProblemKind},
        problems=(404,),
    ),
)
