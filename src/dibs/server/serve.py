"""A server: a service over its store and records, on a socket, from its start to its graceful end."""

import asyncio
import gc
import logging
import signal
import ssl
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from socket import gethostname

from dibs.errors import NotConfigured
from dibs.runtime.aio import AsyncRuntime
from dibs.server.audit import Audit
from dibs.server.auth.credentials import SHORTEST
from dibs.server.auth.keys import KeyService
from dibs.server.background import background, repeat
from dibs.server.config import ServerConfig
from dibs.server.front import Front, allow_files, listening_socket, url_of
from dibs.server.logs import STDERR, logging_to
from dibs.server.metrics import Metrics
from dibs.server.placement.identity import is_found_with
from dibs.server.placement.joining import OwnPlacement, check_each_once, join, own_placement
from dibs.server.placement.markers import Markers
from dibs.server.placement.restrictions import moving_directories
from dibs.server.placement.router import StoreRouter
from dibs.server.placement.rules import PlacementSettings
from dibs.server.records import records_for
from dibs.server.records.port import Records
from dibs.server.records.sqlite import missing_folders, open_to_others
from dibs.server.service import Service
from dibs.session import session_for
from dibs.stores.redact import redacted

log = logging.getLogger("dibs.server")

YOUNG = 5_000
"""So many new objects are there before a look for garbage among them: requests under way are none."""


class Server:
    """One server. `start`, then `run` until `stop`, in one event loop."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.url = ""
        """Where it listens, once it does."""
        self.first_key: str | None = None
        """The first administrator's key, if it was made by this start; to be shown once."""
        self.sign_in_url: str | None = None
        """By it an administrator's browser is signed in once: beside the first key, and where asked for."""
        self._stack = AsyncExitStack()
        self._service: Service | None = None
        self._front: Front | None = None
        self._stopping = asyncio.Event()

    @property
    def service(self) -> Service:
        """What it serves, once it has started."""
        assert self._service is not None, "not started"
        return self._service

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
        new_folders = missing_folders(config.named_urls)
        self._service = service = await self._open()
        lines = self._stack.enter_context(logging_to(STDERR, config.log_format))
        if config.log_format:
            service.meters.append(lines.request)
        if config.metrics:
            _measure(service, config.metrics_directories)
        _trace(service)
        await self._stack.enter_async_context(service.activity.polling())
        await self._warn(service.records, new_folders)  # now that it is logged as the settings say
        if not service.keys.living():  # now that all else is well: it is shown once
            made = await service.keys.first("first administrator")
            self.first_key = made[1] if made else None
        ticket = self._ticket(service)
        self._front = front = Front(service, config, tls)
        self._stack.push_async_callback(front.end)
        await front.begin(sock, self._stopping)
        self.url = url_of(sock, secure=tls is not None)
        if ticket:
            self.sign_in_url = f"{self.url}/#ticket={ticket}"  # what follows # is sent to no server

    async def _open(self) -> Service:
        """The service over its stores and records."""
        config, stack = self.config, self._stack
        own = [self._own(each) for each in config.stores]
        check_each_once(own)
        ways = {
            of.address: self._open_store(each.url)
            for of, each in zip(own, config.stores, strict=True)
        }
        records = records_for(config.records_url)
        await records.open()
        stack.push_async_callback(records.close)
        keys = KeyService(records, secrets=config.secrets())
        await keys.cache.load()
        stack.push_async_callback(keys.cache.close)
        self._check_keys(keys)
        audit = Audit(records, keep=config.audit_keep, most=config.audit_lines)
        stack.enter_context(background(audit.work()))
        await join(records, audit, own, ways, config.placement_fresh)
        runtime = await StoreRouter.over(ways, records, config.placement_fresh)
        await runtime.ready()
        keys.cache.markers = Markers(lambda: runtime.stores)
        service = Service(runtime, records, keys, audit, config.limits, config.origins)
        await keys.cache.on_change(service.sessions.read_ended)
        trouble = "other servers cannot be told who has signed out"
        stack.enter_context(background(repeat(service.sessions.write_ended, 1.0, trouble)))
        moving = moving_directories(runtime, records, audit)
        service.placing = await stack.enter_async_context(moving)
        return service

    def _own(self, placement: PlacementSettings) -> OwnPlacement:
        """A placement, with this machine's name where others could mean another store by it."""
        config = self.config
        machine = "" if is_found_with(config.records_url, placement.url) else gethostname()
        return own_placement(placement, machine)

    async def _warn(self, records: Records, new_folders: Sequence[str]) -> None:
        """Say what is allowed, and may not be what was meant."""
        in_memory = self.config.records_url.startswith("memory:")
        for folder in new_folders:
            log.warning("there was no folder %s, so it was made: is it the one you meant?", folder)
        if not self.config.secret and self.config.secret_path is None and not in_memory:
            log.warning(
                "DIBS_SERVER_SECRET is not set. Browser sessions end when this server restarts. "
                "With several servers, set the same %d random characters on all.",
                SHORTEST,
            )
        secret = None if self.config.secret else self.config.secret_path
        urls = (self.config.records_url, *(each.url for each in self.config.stores))
        for told in open_to_others(urls, secret):
            log.warning("%s", told)
        for warning in await records.warnings():
            log.warning("records = %s: %s", redacted(self.config.records_url), warning)

    def _ticket(self, service: Service) -> str:
        """What signs an administrator in, if that is wanted. Raises `NotConfigured` without any."""
        if not self.first_key and not self.config.sign_in:
            return ""
        administrator = service.keys.administrator()
        if administrator is None:
            raise NotConfigured(
                "sign_in: no key is an administrator's, for everything, so there is nobody to sign in: "
                "`dibs keys create --name me --scope admin` makes one"
            )
        return service.sessions.link_for(administrator.key_id)

    def _open_store(self, url: str) -> AsyncRuntime:
        """The way to a store."""
        session = session_for(url)
        self._stack.callback(session.close)
        self._stack.push_async_callback(session.close_loop)
        return session.loop_runtime()

    def _check_keys(self, keys: KeyService) -> None:
        """Without any key nobody else can reach it. Raises `NotConfigured`."""
        if not keys.living() and not self.config.is_loopback:
            raise NotConfigured(
                "no API key exists yet: create one first: dibs keys create --name me --scope admin "
                f"--records {redacted(self.config.records_url)}"
            )

    async def run(self) -> None:
        """Serve until `stop`, then let requests come to their end, and close everything."""
        assert self._front is not None, "not started"
        try:
            await self._stopping.wait()
            await self._front.drain()
        finally:
            await self.close()

    async def close(self) -> None:
        """Close everything, whatever is under way: for one that has started, and can't `run`."""
        await self._stack.aclose()

    def stop(self) -> None:
        """Begin the end; called in its loop."""
        self._stopping.set()

    def stop_on_signals(self) -> None:
        """End gracefully when the process is asked to end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)


async def serve(config: ServerConfig, on_start: Callable[[Server], None]) -> None:
    """Serve until the process, which is all its own, is asked to end."""
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


def _measure(service: Service, directories: Sequence[str]) -> None:
    """Count and measure requests and commands."""
    quotas = service.quotas
    metrics = service.metrics = Metrics(
        directories,
        service.runtime.place_of,
        leases=lambda: quotas.census().leases,
        waiters=lambda: quotas.census().places,
        streams=lambda: len(list(service.post.streams)),
        keys_age=lambda: service.keys.cache.stale_for,
        draining=lambda: service.drain.begun,
    )
    service.meters.append(metrics.request)
    service.leases.observers.append(metrics.command)
    service.leases.batch_observers.append(metrics.batch)


def _trace(service: Service) -> None:
    """Make a span of each request, if OpenTelemetry is set up in this process."""
    try:
        from opentelemetry import trace
    except ImportError:
        return
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return  # nobody would see a span
    try:
        from dibs.server.tracing import Tracing
    except ModuleNotFoundError as error:
        log.warning(
            "requests are not traced: %s is missing. "
            "Run: pip install 'dibs[otel]' opentelemetry-instrumentation-asgi",
            error.name,
        )
        return
    tracing = service.spans = Tracing(provider, service.runtime.call_all, service.now)
    service.leases.observers.append(tracing.saw)
    service.leases.traces = tracing


async def leave_sign(url: str, name: str) -> None:
    """Leave a sign in a store, as `Signs.put`, for servers that cannot read the records."""
    session = session_for(url)
    store = session.loop_runtime()
    try:
        await store.ready()
        await Markers(lambda: (store,)).put(name)
    finally:
        await session.close_loop()
        session.close()


def _leave_alone_what_stays() -> None:
    """What is there by now stays to the end, so nobody looks for garbage among it any more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)


def context_for(certificate: str, key: str) -> ssl.SSLContext | None:
    """What connections are encrypted with; None where no certificate is given.

    Raises `NotConfigured` for files that can't be read or do not belong together.
    """
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    for setting, path in (("tls_cert", certificate), ("tls_key", key)):
        if not Path(path).is_file():
            raise NotConfigured(f"{setting}: no such file: {path}")
    _check(certificate, key)
    try:
        context.load_cert_chain(certificate, key, password=partial(_locked, key))
    except (OSError, ssl.SSLError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            told = f"{key} is not the private key of the certificate in {certificate}"
            raise NotConfigured(told) from error
        raise NotConfigured(f"{certificate} and {key} do not serve: {error}") from error
    return context


def _check(certificate: str, key: str) -> None:
    """Raises `NotConfigured` for a file that has something else in it: OpenSSL would not say which."""
    for path, other, wanted in (
        (certificate, key, "certificate"),
        (key, certificate, "private key"),
    ):
        if not _has(path, wanted):
            swapped = ": are the two swapped?" if _has(other, wanted) else ""
            raise NotConfigured(f"{path} has no {wanted} in PEM{swapped}")


def _has(path: str, what: str) -> bool:
    """Whether the file has such a block. Raises `NotConfigured` if it can't be read."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise NotConfigured(f"{path} can't be read: {error.strerror}") from error
    end = what.upper().encode() + b"-----"
    return any(line.startswith(b"-----BEGIN ") and line.rstrip().endswith(end) for line in lines)


def _locked(key: str) -> str:
    """Instead of OpenSSL's question on the terminal."""
    raise NotConfigured(f"{key} has a passphrase: give a key without, which only the server reads")
