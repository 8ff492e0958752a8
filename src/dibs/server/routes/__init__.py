"""What the service answers to: one module for each resource, and the table of them all."""

from dibs.server.api.routing import Operation
from dibs.server.routes import (
    about,
    audit,
    batch,
    dashboard,
    events,
    identity,
    keys,
    listing,
    locks,
    move,
    operations,
    queues,
    restrict,
    scanning,
    stream,
    watch,
)

ROUTES: tuple[Operation, ...] = (
    *locks.ROUTES,
    *listing.ROUTES,
    *identity.ROUTES,
    *about.ROUTES,
    *operations.ROUTES,
    *batch.ROUTES,
    *scanning.ROUTES,
    *stream.ROUTES,
    *events.ROUTES,
    *watch.ROUTES,
    *queues.ROUTES,
    *restrict.ROUTES,
    *move.ROUTES,
    *keys.ROUTES,
    *audit.ROUTES,
    *dashboard.ROUTES,
)
