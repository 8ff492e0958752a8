"""What those ask who look after servers: does it live, may requests be sent to it, what does it measure."""

from msgspec import Struct

from dibs.server.answers import Answer, json
from dibs.server.call import Call
from dibs.server.problems import Problem
from dibs.server.routing import PUBLIC, Route

TEXT_FORMAT = b"text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' own."""


class Well(Struct, frozen=True):
    """A server that is well."""

    status: str = "ok"


async def live(_: Call) -> Answer:
    """The loop turns; a server that does not answer this is to be started anew."""
    return json(Well())


async def ready(call: Call) -> Answer:
    """Its store and its records answer, and it is not about to stop."""
    await call.service.health.check()
    return json(Well())


async def metrics(call: Call) -> Answer:
    """All that is counted and measured."""
    found = call.service.metrics
    if found is None:
        raise Problem("no-such-route", "metrics are off: set metrics = true")
    return Answer(200, found.shown(), [(b"content-type", TEXT_FORMAT)])


ROUTES = (
    Route(
        method="GET",
        path="/livez",
        needs=PUBLIC,
        handler=live,
        summary="Whether the server lives: restart one that does not answer",
        answers={200: Well},
    ),
    Route(
        method="GET",
        path="/readyz",
        needs=PUBLIC,
        handler=ready,
        summary="Whether requests should be sent here: not while its store is away, or it is about to stop",
        answers={200: Well},
    ),
    Route(
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
