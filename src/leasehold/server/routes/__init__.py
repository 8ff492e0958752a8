"""What the service answers to: one module for each resource, and the table of them all."""

from leasehold.server.routes import (
    about,
    audit,
    batch,
    identity,
    keys,
    listing,
    locks,
    scanning,
    stream,
)
from leasehold.server.routing import Route

ROUTES: tuple[Route, ...] = (
    *locks.ROUTES,
    *listing.ROUTES,
    *identity.ROUTES,
    *about.ROUTES,
    *batch.ROUTES,
    *scanning.ROUTES,
    *stream.ROUTES,
    *keys.ROUTES,
    *audit.ROUTES,
)
