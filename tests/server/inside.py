"""What tests reach inside a running server: no other file of the tests names its parts."""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from dibs.model import Command
from dibs.runtime.aio import AsyncRuntime
from dibs.runtime.port import CallResult
from dibs.server.activity import Activity
from dibs.server.api.notifications import StreamReceiver
from dibs.server.api.routing import Needs
from dibs.server.audit import Audit
from dibs.server.auth.keys import KeyService
from dibs.server.auth.policy import BrowserSession, Principal
from dibs.server.auth.sessions import Sessions
from dibs.server.lock_events import EventLog
from dibs.server.main import Server
from dibs.server.placement.registry import PlacementList, RecordedPlacement
from dibs.server.placement.router import StoreRouter
from dibs.server.placement.table import RoutingTable, TableReader
from dibs.server.quotas import Quotas
from dibs.server.records import records_for
from dibs.server.records.port import Records

type Stores = StoreRouter
"""What leads commands to one store or several."""


class Running(Protocol):
    """Anything with a server that has started."""

    @property
    def server(self) -> Server: ...


def served_by(world: Running) -> list[tuple[str, dict[str, Needs]]]:
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


def keys_of(world: Running) -> KeyService:
    return world.server.keys


def sessions_of(world: Running) -> Sessions:
    return world.server.sessions


def session_in(world: Running, cookie: str) -> BrowserSession:
    found = sessions_of(world)._cookies.read(cookie, BrowserSession)
    assert found is not None
    return found


def cookie_for(world: Running, key_id: str, expires_at: float, nonce: str = "a nonce") -> str:
    """A cookie as the server would sign it."""
    return sessions_of(world)._cookies.sign(BrowserSession(key_id, int(expires_at), nonce))


def ticket_of(world: Running) -> str:
    """The secret part of a new link that signs an administrator in, as the first start prints one."""
    administrator = keys_of(world).administrator()
    assert administrator is not None
    return sessions_of(world).link_for(administrator.key_id)


def records_of(world: Running) -> Records:
    return world.server.records


def audit_of(world: Running) -> Audit:
    return world.server.audit


def runtime_of(world: Running) -> Stores:
    return world.server.leases.runtime


def serve_from(world: Running, runtime: Stores) -> None:
    """Have it keep leases there from now on, and pass notifications on to its clients."""
    if not isinstance(runtime.receiver, StreamReceiver):
        runtime.receiver = StreamReceiver(runtime.receiver, world.server.streams)
    world.server.leases.runtime = runtime


def at_the_end(world: Running, close: Callable[[], Awaitable[None]]) -> None:
    """Have an asynchronous function called when the server ends."""
    world.server._stack.push_async_callback(close)


def stores_of(world: Running) -> list[AsyncRuntime]:
    return list(runtime_of(world).stores)


def store_of(world: Running) -> AsyncRuntime:
    (store,) = stores_of(world)
    return store


def placements_of(world: Running) -> Any:
    return runtime_of(world).named


def table_reader_of(world: Running) -> TableReader:
    return runtime_of(world).reader


async def ask_all(
    world: Running, who: Principal, commands: Sequence[Command]
) -> Sequence[CallResult]:
    """Have commands applied for a key, as a batch has."""
    return await world.server.leases.ask_all(who, commands)


def alone(store: AsyncRuntime) -> Stores:
    """One store behind what a server has for several, without a server."""
    listing = PlacementList((RecordedPlacement("default", ("here",)),), "default", 3.0)
    records = records_for("memory://")  # nobody reads them: the table never ages
    reader = TableReader(records, lambda: 0.0, RoutingTable(listing, read_at=0.0), 3.0, store)
    return StoreRouter({"here": store}, reader)


def quotas_of(world: Running) -> Quotas:
    return world.server.quotas


def events_of(world: Running) -> Activity:
    return world.server.activity


def is_watched(world: Running) -> bool:
    """Whether anybody follows its events or watches a key."""
    return bool(events_of(world)._followers)


def followers_of(world: Running) -> int:
    return events_of(world)._followed[None]


def event_log(size: int) -> EventLog:
    log = EventLog()
    log._events = deque(maxlen=size)
    return log


def has_looked(world: Running) -> bool:
    """Whether it has read all keys of the store once."""
    return events_of(world).keys._scans > 0
