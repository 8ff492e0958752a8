"""The routes of an application, and what its OpenAPI document says of those that acquire leases."""

from collections.abc import Iterator
from typing import Any

import fastapi.routing

from dibs import AcquireTimeout, BackendUnavailable
from dibs.contrib.problems import KINDS, MEDIA_TYPE


def routes_of(app: Any) -> Iterator[Any]:
    """All of an application, also those of the routers that it includes."""
    # FastAPI keeps included routers apart since it has this
    each = getattr(fastapi.routing, "iter_route_contexts", iter)
    yield from each(app.routes)


def dependants(route: Any) -> Iterator[Any]:
    """A route's handler and its dependencies, level by level; nothing for what is no route of FastAPI's."""
    dependant = getattr(route, "dependant", None)
    level = [dependant] if dependant is not None else []
    while level:
        yield from level
        level = [below for each in level for below in each.dependencies]


def openapi_responses(*, status: int = 409) -> dict[int | str, dict[str, Any]]:
    """Responses of a route that acquires leases, for `responses=` of FastAPI.

    `lifespan` adds them to routes with a `Held`. `status` is that of contention.
    """
    busy, away = KINDS[AcquireTimeout], KINDS[BackendUnavailable]
    return {status: _described(busy.title), away.status: _described(away.title)}


def _described(title: str) -> dict[str, Any]:
    texts = {key: {"type": "string"} for key in ("type", "title", "detail", "instance")}
    schema = {
        "type": "object",
        "properties": {
            **texts,
            "status": {"type": "integer"},
            "position": {"type": "integer", "description": "Waiters ahead."},
            "retry_after": {"type": "number", "description": "Seconds."},
        },
    }
    retry = {"description": "Seconds until the next try.", "schema": {"type": "integer"}}
    return {
        "description": title,
        "headers": {"Retry-After": retry},
        "content": {MEDIA_TYPE: {"schema": schema}},
    }
