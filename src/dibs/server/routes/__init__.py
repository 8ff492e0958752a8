"""The table of all operations. Those that are no methods yet are in one module for each resource."""

from dibs.server.api.admin import KeyRoutes, PlacementRoutes
from dibs.server.api.listing import Listing
from dibs.server.api.routing import Operation, table_of
from dibs.server.api.service import ServiceRoutes
from dibs.server.routes import batch, events, locks, stream, watch
from dibs.server.ui.pages import Pages

ROUTES: tuple[Operation, ...] = (
    *locks.ROUTES,
    *batch.ROUTES,
    *table_of(Listing),
    *stream.ROUTES,
    *table_of(ServiceRoutes),
    *events.ROUTES,
    *watch.ROUTES,
    *table_of(KeyRoutes, PlacementRoutes, Pages),
)
"""Starlette tries paths in this order: those that are asked for most come first."""
