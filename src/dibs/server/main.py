"""A server from its start to its graceful end: stores, records, the parts of the service, its socket.

Leases are in stores, keys and restrictions in records, so any server of the service can answer. Some state
ends with a server: streams, waiting requests, the usage of each key, and the log of events.
"""

import asyncio
import gc
import logging
import secrets
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from socket import gethostname
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from dibs.errors import NotConfigured
from dibs.runtime.aio import AsyncRuntime
from dibs.server.activity import Activity, ObservingReceiver
from dibs.server.api.admin import KeyRoutes, PlacementRoutes
from dibs.server.api.batch import BatchRoutes
from dibs.server.api.bounds import CommandBounds
from dibs.server.api.events import EventRoutes
from dibs.server.api.listing import ListingRoutes
from dibs.server.api.locks import LockRoutes
from dibs.server.api.notifications import NotificationRoutes, NotificationStreams, StreamReceiver
from dibs.server.api.parameters import BodyReader
from dibs.server.api.reading import KeyReader
from dibs.server.api.service import Health, ServiceRoutes
from dibs.server.api.sse import EventStreams
from dibs.server.api.waiting import WaitingAcquires
from dibs.server.app import Application, Meter, description
from dibs.server.audit import Audit
from dibs.server.auth.credentials import SHORTEST
from dibs.server.auth.keys import KeyService
from dibs.server.auth.sessions import Sessions
from dibs.server.background import background
from dibs.server.config import ServerConfig
from dibs.server.front import Front, allow_files, context_for, listening_socket, url_of
from dibs.server.leases import LeaseService
from dibs.server.logs import STDERR, logging_to
from dibs.server.metrics import Metrics
from dibs.server.placement.identity import is_found_with
from dibs.server.placement.joining import OwnPlacement, check_each_once, join, own_placement
from dibs.server.placement.markers import Markers
from dibs.server.placement.restrictions import moving_directories
from dibs.server.placement.router import StoreRouter
from dibs.server.placement.rules import PlacementSettings, is_unknown_country
from dibs.server.quotas import Quotas
from dibs.server.records import records_for
from dibs.server.records.sqlite import open_to_others
from dibs.server.shutdown import Endings, Shutdown
from dibs.server.ui.pages import Pages
from dibs.session import session_for
from dibs.stores.redact import redacted

if TYPE_CHECKING:
    from dibs.server.tracing import Tracing

log: logging.Logger = logging.getLogger("dibs.server")

YOUNG = 5_000
"""New objects before the next garbage collection: more than the requests under way have."""


class Server:
    """A server of the service. `start`, then `run` until `stop`, in one event loop."""

    def __init__(self, config: ServerConfig) -> None:
        self.config: ServerConfig = config
        self.server_id: str = secrets.token_hex(6)
        """Names this server among those of the service. New at each start."""
        self.url: str = ""
        """Its URL, once it listens."""
        self.first_key: str | None = None
        """The first administrator's key, if this start created it. Show it once."""
        self.sign_in_url: str | None = None
        """Signs an administrator's browser in once: beside the first key, and with `sign_in`."""
        self.meters: list[Meter] = []
        """Called after each request."""
        self._stack = AsyncExitStack()
        self._front: Front | None = None
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Open everything, and listen. Raises `NotConfigured` or `BackendUnavailable`."""
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self) -> None:
        config = self.config
        tls = context_for(config.tls_cert, config.tls_key)
        sock = listening_socket(config)
        self._stack.callback(sock.close)
        await self._open()
        app = await self._build()
        await self._warn()  # after the log is set up
        if not self.keys.living():  # last, because it is shown once
            made = await self.keys.first("first administrator")
            self.first_key = made[1] if made else None
        ticket = self._ticket()
        self._front = front = Front(app, self.server_id, self.shutdown, config, tls)
        self._stack.push_async_callback(front.end)
        await front.begin(sock, self._stopping)
        self.url = url_of(sock, secure=tls is not None)
        if ticket:
            self.sign_in_url = f"{self.url}/#ticket={ticket}"  # what follows # is sent to no server

    async def _open(self) -> None:
        """Open the stores and the records, and join the other servers of the service."""
        config, stack = self.config, self._stack
        own = [self._own(each) for each in config.stores]
        check_each_once(own)
        ways = {
            of.address: self._open_store(each.url)
            for of, each in zip(own, config.stores, strict=True)
        }
        self.records = records = records_for(config.records_url)
        await records.open()
        stack.push_async_callback(records.close)
        self.keys: KeyService
        self.keys = keys = KeyService(records, secrets=config.secrets())
        await keys.cache.load()
        stack.push_async_callback(keys.cache.close)
        self._check_keys()
        self.audit: Audit
        self.audit = audit = Audit(records, keep=config.audit_keep, most=config.audit_lines)
        stack.enter_context(background(audit.work()))
        await join(records, audit, own, ways, config.placement_fresh)
        # commands go to the store, or to that of several where their key lives
        self.runtime: StoreRouter
        self.runtime = runtime = await StoreRouter.over(ways, records, config.placement_fresh)
        await runtime.ready()
        keys.cache.markers = Markers(lambda: runtime.stores)
        moving = moving_directories(runtime, records, audit)
        self.placements = await stack.enter_async_context(moving)

    async def _build(self) -> ASGIApp:
        """Make the parts of the service, each with the parts that it uses."""
        config, limits, stack = self.config, self.config.limits, self._stack
        runtime, records, keys, audit = self.runtime, self.records, self.keys, self.audit
        self.quotas: Quotas
        self.quotas = quotas = Quotas(limits, runtime.now)
        self.leases: LeaseService
        self.leases = leases = LeaseService(runtime, quotas)
        self.streams: NotificationStreams
        self.streams = streams = NotificationStreams(self.server_id, limits)
        self.activity: Activity
        self.activity = activity = Activity(runtime.now, runtime.scan)
        leases.observers.append(activity.keys.applied)
        receiver = StreamReceiver(runtime.receiver, streams)
        runtime.receiver = ObservingReceiver(receiver, activity.keys)
        self.sessions: Sessions
        self.sessions = sessions = Sessions(keys, records, config.origins)
        await keys.cache.on_change(sessions.read_ended)
        self.shutdown: Shutdown
        self.shutdown = shutdown = Shutdown()
        self.endings: Endings
        self.endings = endings = Endings(shutdown, keys, sessions)
        self.health: Health = Health(shutdown, keys.cache, leases)

        lines = stack.enter_context(logging_to(STDERR, config.log_format))
        if config.log_format:
            self.meters.append(lines.request)
        metrics = self._metrics() if config.metrics else None
        self.tracing: Tracing | None
        self.tracing = tracing = _tracing(leases)
        await stack.enter_async_context(activity.polling())

        bounds = CommandBounds(limits, leases.stamp)
        bodies = BodyReader(quotas.small_bodies, quotas.bodies, limits.request_time)
        reader = KeyReader(leases, quotas.reading)
        waiting = WaitingAcquires(leases, quotas, endings, activity.keys)
        answers = EventStreams(endings, quotas, limits)
        parts = (
            LockRoutes(leases, quotas, waiting, audit, bounds, limits.max_wait),
            BatchRoutes(leases, quotas, reader, streams, audit, bounds, bodies, limits.max_body),
            ListingRoutes(leases, reader, limits),
            NotificationRoutes(answers, streams),
            ServiceRoutes(
                self.server_id,
                lambda: leases.runtime.capabilities,
                keys,
                limits,
                bodies,
                self.health,
                None if metrics is None else metrics.shown,
                description,
            ),
            EventRoutes(self.server_id, answers, activity, leases, reader, quotas.reading, limits),
            KeyRoutes(keys, audit, quotas.changing),
            PlacementRoutes(self.placements, quotas.changing),
            Pages(sessions, quotas, audit, bodies),
        )
        return Application(
            parts,
            keys=keys,
            sessions=sessions,
            audit=audit,
            bodies=bodies,
            now=runtime.now,
            meters=self.meters,
            tracing=tracing,
        )

    def _own(self, placement: PlacementSettings) -> OwnPlacement:
        """A placement, with this machine's name where others could mean another store by it."""
        config = self.config
        machine = "" if is_found_with(config.records_url, placement.url) else gethostname()
        return own_placement(placement, machine)

    def _metrics(self) -> Metrics:
        """Count and measure requests and commands."""
        quotas, streams, cache = self.quotas, self.streams, self.keys.cache
        metrics = Metrics(
            self.config.metrics_directories,
            self.runtime.place_of,
            leases=lambda: quotas.census().leases,
            waiters=lambda: quotas.census().waiters + quotas.waiting,
            streams=lambda: len(list(streams.streams)),
            keys_age=lambda: cache.stale_for,
            draining=lambda: self.shutdown.begun,
        )
        self.meters.append(metrics.request)
        self.leases.observers.append(metrics.command)
        self.leases.error_observers.append(metrics.unanswered)
        self.leases.batch_observers.append(metrics.batch)
        self.activity.observers.append(metrics.event)
        return metrics

    async def _warn(self) -> None:
        """Warn about settings that are allowed, but can be mistakes."""
        in_memory = self.config.records_url.startswith("memory:")
        if not self.config.secret and self.config.secret_path is None and not in_memory:
            log.warning(
                "DIBS_SERVER_SECRET is not set. Browser sessions end when this server restarts. "
                "With several servers, set the same %d random characters on all.",
                SHORTEST,
            )
        secret = None if self.config.secret else self.config.secret_path
        urls = (self.config.records_url, *(each.url for each in self.config.stores))
        for reason in open_to_others(urls, secret):
            log.warning("%s", reason)
        for each in self.config.placement:
            if is_unknown_country(each.region.strip()):
                log.warning(
                    "placement %s: region = %r is in none of the regions that are known (XE, XN, …). A "
                    "restriction allows it only by that word.",
                    each.name,
                    each.region,
                )
        for warning in await self.records.warnings():
            log.warning("records = %s: %s", redacted(self.config.records_url), warning)

    def _ticket(self) -> str:
        """The secret of a sign-in link for an administrator; empty for no link. Raises `NotConfigured`."""
        if not self.first_key and not self.config.sign_in:
            return ""
        administrator = self.keys.administrator()
        if administrator is None:
            raise NotConfigured(
                "sign_in: no key is an administrator's, for everything, so there is nobody to sign in: "
                "`dibs keys create --name me --scope admin` makes one"
            )
        return self.sessions.link_for(administrator.key_id)

    def _open_store(self, url: str) -> AsyncRuntime:
        """Open a store."""
        session = session_for(url)
        self._stack.callback(session.close)
        self._stack.push_async_callback(session.close_loop)
        return session.loop_runtime()

    def _check_keys(self) -> None:
        """Raises `NotConfigured` without any key, if other machines can reach the server."""
        if not self.keys.living() and not self.config.is_loopback:
            raise NotConfigured(
                "no API key exists yet: create one first: dibs keys create --name me --scope admin "
                f"--records {redacted(self.config.records_url)}"
            )

    async def run(self) -> None:
        """Serve until `stop`. Then wait for requests under way, and close everything."""
        assert self._front is not None, "not started"
        try:
            await self._stopping.wait()
            await self._front.drain()
        finally:
            await self.close()

    async def close(self) -> None:
        """Close everything at once, whatever is under way."""
        await self._stack.aclose()

    def stop(self) -> None:
        """Make `run` return. Call it in the server's loop."""
        self._stopping.set()

    def stop_on_signals(self) -> None:
        """Call `stop` on SIGTERM and SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop, which takes a sixth less CPU. Where it is not installed, asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def serve(config: ServerConfig, on_start: Callable[[Server], None]) -> None:
    """Serve until the process gets SIGTERM or SIGINT. The server changes settings of the whole process."""
    allow_files(config.limits.connections + 256)
    server = Server(config)
    await server.start()
    try:
        _leave_alone_what_stays()
        server.stop_on_signals()
        on_start(server)
        await server.run()
    finally:
        await server.close()


def _tracing(leases: LeaseService) -> "Tracing | None":
    """Make a span for each request, if OpenTelemetry is set up in this process."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None  # no span would be exported
    try:
        from dibs.server.tracing import Tracing
    except ModuleNotFoundError as error:
        log.warning(
            "requests are not traced: %s is missing. "
            "Run: pip install 'dibs[otel]' opentelemetry-instrumentation-asgi",
            error.name,
        )
        return None
    runtime = leases.runtime
    leases.tracing = tracing = Tracing(provider, runtime.call, runtime.now)
    leases.observers.append(tracing.saw)
    return tracing


async def put_marker(url: str, name: str) -> None:
    """Set a revocation marker in one store: see `Markers.put`."""
    session = session_for(url)
    store = session.loop_runtime()
    try:
        await store.ready()
        await Markers(lambda: (store,)).put(name)
    finally:
        await session.close_loop()
        session.close()


def _leave_alone_what_stays() -> None:
    """Exclude all present objects from garbage collection, as they live as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
