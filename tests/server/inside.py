"""What tests reach inside a running server: no other file of the tests names its parts."""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from dibs.model import Command
from dibs.runtime.aio import AsyncRuntime
from dibs.runtime.port import CallResult
from dibs.server.activity import Activity
from dibs.server.api.notifications import NotificationStreams, StreamReceiver
from dibs.server.api.parameters import BodyReader
from dibs.server.api.routing import Needs
from dibs.server.api.service import Health
from dibs.server.app import Application, Meter
from dibs.server.audit import Audit
from dibs.server.auth.keys import KeyService
from dibs.server.auth.policy import BrowserSession, Principal
from dibs.server.auth.sessions import Sessions
from dibs.server.leases import Observer
from dibs.server.lock_events import EventLog
from dibs.server.main import Server
from dibs.server.placement.router import StoreRouter
from dibs.server.placement.table import TableReader
from dibs.server.quotas import Quotas
from dibs.server.records.port import Records
from dibs.server.shutdown import Endings, Shutdown

type Stores = StoreRouter
"""What leads commands to one store or several."""


class Running(Protocol):
    """Anything with a server that has started."""

    @property
    def server(self) -> Server: ...


def application_of(world: Running, *parts: object) -> Application:
    """An application of these parts, which lets in whom the server lets in."""
    server = world.server
    quotas = server.quotas
    return Application(
        parts,
        keys=server.keys,
        sessions=server.sessions,
        audit=server.audit,
        bodies=BodyReader(quotas.small_bodies, quotas.bodies, 60.0),
        now=server.leases.runtime.now,
    )


def server_id_of(world: Running) -> str:
    """The id that its answers carry."""
    return world.server.server_id


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


# -- keys and records -------------------------------------------------------------------------------


def keys_of(world: Running) -> KeyService:
    """Its API keys."""
    return world.server.keys


def sessions_of(world: Running) -> Sessions:
    """Its browser sessions."""
    return world.server.sessions


def session_in(world: Running, cookie: str) -> BrowserSession:
    """The session that a cookie is."""
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
    """Where keys, sessions, audit lines and placements are recorded."""
    return world.server.records


def audit_of(world: Running) -> Audit:
    """Its audit log."""
    return world.server.audit


# -- stores -----------------------------------------------------------------------------------------


def runtime_of(world: Running) -> Stores:
    """The way of all commands to the stores; a test can replace its `call` and `call_all`."""
    return world.server.leases.runtime


def serve_from(world: Running, runtime: Stores) -> None:
    """Have it keep leases there from now on, and pass notifications on to its clients."""
    if not isinstance(runtime.receiver, StreamReceiver):
        runtime.receiver = StreamReceiver(runtime.receiver, notifications_of(world))
    world.server.leases.runtime = runtime


def at_the_end(world: Running, close: Callable[[], Awaitable[None]]) -> None:
    """Have an asynchronous function called when the server ends."""
    world.server._stack.push_async_callback(close)


def stores_of(world: Running) -> list[AsyncRuntime]:
    """The runtime of each store, behind the router's back."""
    return list(runtime_of(world).stores)


def store_of(world: Running) -> AsyncRuntime:
    """The runtime of its only store."""
    (store,) = stores_of(world)
    return store


def placements_of(world: Running) -> Any:
    """The runtimes of its stores by the names of their placements."""
    return runtime_of(world).named


def table_reader_of(world: Running) -> TableReader:
    """What it knows of where directories live."""
    return runtime_of(world).reader


async def ask_all(
    world: Running, who: Principal, commands: Sequence[Command]
) -> Sequence[CallResult]:
    """Have commands applied for a key, as a batch has."""
    return await world.server.leases.ask_all(who, commands)


def alone(store: AsyncRuntime) -> Stores:
    """One store behind what a server has for several, without a server."""
    return StoreRouter.alone(store)


# -- requests ---------------------------------------------------------------------------------------


def quotas_of(world: Running) -> Quotas:
    """What each key has in use, and the turns of requests."""
    return world.server.quotas


def observers_of(world: Running) -> list[Observer]:
    """Functions that are called with each command that was applied."""
    return world.server.leases.observers


def meters_of(world: Running) -> list[Meter]:
    """Functions that are called with each request that was answered."""
    return world.server.meters


def notifications_of(world: Running) -> NotificationStreams:
    """The streams of notifications to clients."""
    return world.server.streams


def events_of(world: Running) -> Activity:
    """Its events: the latest ones, the known state of keys, the looks at the store."""
    return world.server.activity


def is_watched(world: Running) -> bool:
    """Whether anybody follows its events or watches a key."""
    return bool(events_of(world)._followers)


def followers_of(world: Running) -> int:
    """How many follow all of its events."""
    return events_of(world)._followed[None]


def event_log(size: int) -> EventLog:
    """A log that keeps so many events."""
    log = EventLog()
    log._events = deque(maxlen=size)
    return log


def has_looked(world: Running) -> bool:
    """Whether it has read all keys of the store once."""
    return events_of(world).keys._scans > 0


def is_traced(server: Server) -> bool:
    """Whether requests become spans."""
    return server.tracing is not None


def shutdown_of(world: Running) -> Shutdown:
    """Whether it is about to stop."""
    return world.server.shutdown


def endings_of(world: Running) -> Endings:
    """What ends its long answers."""
    return world.server.endings


def health_of(world: Running) -> Health:
    """Whether its store answers."""
    return world.server.health
