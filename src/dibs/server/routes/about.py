"""What the service says of itself: its limits, its description, and what each problem means."""

from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec
from msgspec import Struct
from starlette.responses import Response

from dibs.server.api.problems import KINDS, Problem
from dibs.server.api.responses import bytes_response, json_response
from dibs.server.api.routing import PUBLIC, SIGNED_IN, Operation
from dibs.server.call import Call
from dibs.server.limits import Limits
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


async def about(call: Call) -> Response:
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
    return json_response(
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


async def limits(call: Call) -> Response:
    """How much there may be of anything."""
    return json_response(call.service.limits)


async def problem(call: Call) -> Response:
    """What a problem's type means."""
    word = call.params["word"]
    kind = KINDS.get(word)
    if kind is None:
        raise Problem("no-such-route", "unknown problem type")
    return json_response(ProblemKind(f"/problems/{word}", kind.title, kind.status, kind.advice))


async def description(_: Call) -> Response:
    """All of the service, as OpenAPI 3.1."""
    return bytes_response(_written(), "application/json")


@cache
def _written() -> bytes:
    from dibs.server.openapi import described
    from dibs.server.routes import ROUTES

    return msgspec.json.encode(described(ROUTES))


ROUTES = (
    Operation(
        method="GET",
        path="/v1/about",
        needs=SIGNED_IN,
        handler=about,
        summary="What this service is and promises, and whose key this is",
        answers={200: About},
    ),
    Operation(
        method="GET",
        path="/v1/limits",
        needs=SIGNED_IN,
        handler=limits,
        summary="All limits, in total and per API key",
        answers={200: Limits},
    ),
    Operation(
        method="GET",
        path="/v1/openapi.json",
        needs=PUBLIC,
        handler=description,
        summary="This description",
        answers={200: dict[str, Any]},
    ),
    Operation(
        method="GET",
        path="/problems/{word}",
        needs=PUBLIC,
        handler=problem,
        summary="What a problem's type means, and what to do",
        answers={200: ProblemKind},
        problems=(404,),
    ),
)
