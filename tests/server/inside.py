"""Private parts of a running server that tests reach."""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from dibs.runtime.aio import AsyncRuntime
from dibs.server.api.notifications import StreamReceiver
from dibs.server.api.routing import Needs
from dibs.server.auth.policy import BrowserSession
from dibs.server.lock_events import EventLog
from dibs.server.placement.registry import PlacementList, RecordedPlacement
from dibs.server.placement.router import StoreRouter
from dibs.server.placement.table import RoutingTable, TableReader
from dibs.server.records import records_for
from tests.server.world import World

type Stores = StoreRouter
"""What leads commands to one store or several."""


def served_by(world: World) -> list[tuple[str, dict[str, Needs]]]:
    """The paths of its Starlette routes, as the table has them, and what each method there needs."""
    front = world.server._front
    assert front is not None
    app: Any = front._uvicorn.config.app
    return [
        (
            route.path.replace("{rest:path}", "{rest}"),
            {method: each.operation.needs for method, each in route.endpoint.methods.items()},
        )
        for route in app.router.routes
    ]


def session_in(world: World, cookie: str) -> BrowserSession:
    found = world.server.sessions._cookies.read(cookie, BrowserSession)
    assert found is not None
    return found


def cookie_for(world: World, key_id: str, expires_at: float, nonce: str = "a nonce") -> str:
    """A cookie as the server would sign it."""
    return world.server.sessions._cookies.sign(BrowserSession(key_id, int(expires_at), nonce))


def ticket_of(world: World) -> str:
    """The secret part of a new link that signs an administrator in, as the first start prints one."""
    administrator = world.server.keys.administrator()
    assert administrator is not None
    return world.server.sessions.link_for(administrator.key_id)


def serve_from(world: World, runtime: Stores) -> None:
    """Have it keep leases there from now on, and pass notifications on to its clients."""
    if not isinstance(runtime.receiver, StreamReceiver):
        runtime.receiver = StreamReceiver(runtime.receiver, world.server.streams)
    world.server.leases.runtime = runtime


def at_the_end(world: World, close: Callable[[], Awaitable[None]]) -> None:
    world.server._stack.push_async_callback(close)


def alone(store: AsyncRuntime) -> Stores:
    """One store behind what a server has for several, without a server."""
    listing = PlacementList((RecordedPlacement("default", ("here",)),), "default", 3.0)
    records = records_for("memory://")  # nobody reads them: the table never ages
    reader = TableReader(records, lambda: 0.0, RoutingTable(listing, read_at=0.0), 3.0, store)
    return StoreRouter({"here": store}, reader)


def followers_of(world: World) -> int:
    """How many follow its events or watch a key."""
    return len(world.server.activity._followers)


def event_log(size: int) -> EventLog:
    log = EventLog()
    log._events = deque(maxlen=size)
    return log


def has_looked(world: World) -> bool:
    """Whether it has read all keys of the store once."""
    return world.server.activity.keys._scans > 0
