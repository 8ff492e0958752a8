"""What those ask who look after servers: does it live, may requests be sent to it, what does it measure."""

from msgspec import Struct
from starlette.responses import Response

from dibs.server.api.problems import Problem
from dibs.server.api.responses import bytes_response, json_response
from dibs.server.api.routing import PUBLIC, Operation
from dibs.server.call import Call

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' own."""


class Well(Struct, frozen=True):
    """A server that is well."""

    status: str = "ok"


async def live(_: Call) -> Response:
    """The loop turns; a server that does not answer this is to be started anew."""
    return json_response(Well())


async def ready(call: Call) -> Response:
    """Its store and its records answer, and it is not about to stop."""
    await call.service.health.check()
    return json_response(Well())


async def metrics(call: Call) -> Response:
    """All that is counted and measured."""
    found = call.service.metrics
    if found is None:
        raise Problem("no-such-route", "metrics are off: set metrics = true")
    return bytes_response(found.shown(), TEXT_FORMAT)


ROUTES = (
    Operation(
        method="GET",
        path="/livez",
        needs=PUBLIC,
        handler=live,
        summary="Whether the server lives: restart one that does not answer",
        answers={200: Well},
    ),
    Operation(
        method="GET",
        path="/readyz",
        needs=PUBLIC,
        handler=ready,
        summary="Whether requests should be sent here: not while its store is away, or it is about to stop",
        answers={200: Well},
    ),
    Operation(
        method="GET",
        path="/metrics",
        needs=PUBLIC,
        handler=metrics,
        summary="Counts and times, for Prometheus",
        answers={200: str},
        problems=(404,),
        media="text/plain",
    ),
)
