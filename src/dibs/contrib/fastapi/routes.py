"""What FastAPI knows of an application's routes."""

from collections.abc import Iterator
from typing import Any

import fastapi.routing


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
