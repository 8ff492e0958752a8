"""The table of all operations."""

from dibs.server.api.admin import KeyRoutes, PlacementRoutes
from dibs.server.api.batch import BatchRoutes
from dibs.server.api.events import EventRoutes
from dibs.server.api.listing import ListingRoutes
from dibs.server.api.locks import LockRoutes
from dibs.server.api.push import PushRoutes
from dibs.server.api.routing import Operation, table_of
from dibs.server.api.service import ServiceRoutes
from dibs.server.ui.pages import Pages

ROUTES: tuple[Operation, ...] = (
    *table_of(LockRoutes, BatchRoutes, ListingRoutes, PushRoutes, ServiceRoutes, EventRoutes),
    *table_of(KeyRoutes, PlacementRoutes, Pages),
)
"""Starlette tries paths in this order: those that are asked for most come first."""
