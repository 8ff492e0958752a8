"""Requests to the service, and what its answers mean. The connections of asyncio and threads carry them."""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal

import msgspec

from dibs.errors import DibsError
from dibs.model import Command, Finding, Page, Reply
from dibs.stores.http import wire
from dibs.stores.http.errors import check_format, explain, is_ours, unreadable
from dibs.stores.http.names import decoded, encoded
from dibs.stores.http.url import ApiKey, HttpSettings
from dibs.stores.http.wire import to_model, to_wire
from dibs.stores.web.endpoint import is_here
from dibs.stores.web.reading import Response
from dibs.version import VERSION

BINARY = "application/msgpack"
JSON = "application/json"
EVENTS = "text/event-stream"

NOTIFICATIONS = "/v1/stream"
"""The path of a client's stream of notifications."""

_encode = msgspec.msgpack.Encoder().encode
_read_batch = msgspec.msgpack.Decoder(wire.BatchAnswer).decode
_read_page = msgspec.json.Decoder(wire.StatusPage).decode
read_about: Callable[[bytes], wire.About] = msgspec.json.Decoder(wire.About).decode
read_ttls: Callable[[bytes], wire.Ttls] = msgspec.json.Decoder(wire.Ttls).decode


@cache
def _agent() -> str:
    """The `User-Agent`. Looked up once, as an upgrade may replace its files while this process runs."""
    return f"dibs/{VERSION}"


class Requests:
    """The requests of one connection. Each connection looks up its API key again, which may have changed."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._key: ApiKey | None = settings.find_key()
        base = settings.base
        common = f"host: {settings.authority}\r\nuser-agent: {_agent()}\r\n"
        common += f"{wire.FORMAT_HEADER}: {wire.FORMAT}\r\n"
        if self._key is not None:
            common += f"authorization: Bearer {self._key.secret}\r\n"
        head = (
            f"POST {base}/v1/batch HTTP/1.1\r\n{common}content-type: {BINARY}\r\n"
            f"accept: {BINARY}\r\ncontent-length: "
        )
        self._common = common
        self._batch = head.encode("latin-1")

    # -- requests -----------------------------------------------------------------------------------

    def batch(self, commands: Sequence[Command]) -> bytes:
        """Apply commands."""
        body = _encode(wire.Batch(tuple(map(to_wire, commands))))
        return b"%b%d\r\n%b\r\n%b" % (self._batch, len(body), trace_lines(), body)

    def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> bytes:
        """List a page of keys."""
        query = f"?prefix={encoded(prefix)}&limit={limit}"
        path = "/v1/scan" + query + (f"&cursor={encoded(cursor)}" if cursor else "")
        return self._head("GET", path, JSON) + trace_lines() + b"\r\n"

    def about(self) -> bytes:
        """Ask for the service's version and promises, and the key's scopes."""
        return self.call("GET", "/v1/about")

    def limits(self) -> bytes:
        """Ask for the limits."""
        return self.call("GET", "/v1/limits")

    def stream(self, path: str = NOTIFICATIONS, last_id: str = "") -> bytes:
        """Begin a stream of events, after the one with `last_id`."""
        more = f"last-event-id: {last_id}\r\n" if last_id else ""
        return self._head("GET", path, EVENTS, more) + b"\r\n"

    def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send JSON, and ask for JSON."""
        if body is None and method == "GET":
            return self._head(method, path, JSON) + b"\r\n"
        body = body or b""
        more = f"content-type: {JSON}\r\ncontent-length: {len(body)}\r\n"
        return self._head(method, path, JSON, more) + b"\r\n" + body

    def _head(self, method: str, path: str, accept: str, more: str = "") -> bytes:
        line = f"{method} {self._settings.base}{path} HTTP/1.1\r\n"
        return f"{line}{self._common}accept: {accept}\r\n{more}".encode("latin-1")

    # -- answers ------------------------------------------------------------------------------------

    def replies(self, answer: Response, count: int) -> Sequence[Reply]:
        """Read the replies to `count` commands. Raises the error that the answer has instead."""
        replies = self.read(answer, _read_batch).replies
        if len(replies) != count:
            raise self._nonsense(f"{len(replies)} replies to {count} commands")
        try:
            return [to_model(reply) for reply in replies]
        except ValueError as error:
            raise unreadable(self._settings, error) from error

    def page(self, answer: Response) -> Page:
        """Read a page of keys. Raises like `replies`."""
        page = self.read(answer, _read_page)
        try:
            cursor = None if page.cursor is None else decoded(page.cursor)
            return Page([to_model(each) for each in page.items], cursor)
        except ValueError as error:
            raise unreadable(self._settings, error) from error

    def check_stream(self, answer: Response) -> None:
        """Raise the error of an answer whose head does not begin a stream."""
        self._check(answer)
        if not answer.headers.get("content-type", "").startswith(EVENTS):
            raise self._nonsense("a stream that is none")

    def read[T](self, answer: Response, read: Callable[[bytes], T]) -> T:
        """Read a body. Raises like `replies`."""
        self._check(answer)
        try:
            return read(answer.body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise unreadable(self._settings, error) from error

    def _check(self, answer: Response) -> None:
        self.check_ours(answer)
        if answer.status != 200:
            raise self.problem(answer)

    def check_ours(self, answer: Response) -> None:
        """Raise an error unless a service of this release answered, with success or without."""
        if not is_ours(answer):
            raise self.problem(answer)
        check_format(answer, self._settings)

    def problem(self, answer: Response) -> DibsError:
        """The error that callers see for an answer without success."""
        return explain(answer, self._settings, self._key)

    def _nonsense(self, what: str) -> DibsError:
        return unreadable(self._settings, ValueError(what))


_API = "opentelemetry.trace"


def trace_lines() -> bytes:
    """Headers with the context of the current span; empty without one.

    A program that has a current span has imported OpenTelemetry, so it is not imported here.
    """
    current = getattr(sys.modules.get(_API), "get_current_span", None)
    if current is None or not current().get_span_context().is_valid:
        return b""
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return "".join(f"{name}: {value}\r\n" for name, value in carrier.items()).encode("latin-1")


@cache
def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


def findings(about: wire.About, ttls: wire.Ttls, settings: HttpSettings) -> Sequence[Finding]:
    """For `dibs doctor`: the service and its store, what this API key may do, the ttls, the encryption."""
    told = f"Dibs {about.version}, server {about.server}, format {about.format}"
    return [Finding("server", "ok", told), _store(about), _key(about), _ttl(ttls), _way(settings)]


def _store(about: wire.About) -> Finding:
    """Persistence, as far as the kind of store promises it. Only the store itself shows its settings."""
    if about.promises.durable:
        told = "the service's store writes grants to disk, unless its own settings prevent that"
        level: Literal["note", "warning"] = "note"
    else:
        told = (
            "it depends on the settings of the service's store whether leases survive its restart"
        )
        level = "warning"
    advice = "run `dibs doctor` with that store's URL, where the service runs"
    return Finding("persistence", level, told, advice)


def _key(about: wire.About) -> Finding:
    who = f"{about.name} (key {about.key})"
    if not (about.scopes and about.directories):
        advice = "`dibs keys create` on the server makes one with scopes and directories"
        return Finding("key", "problem", f"{who} may do nothing", advice)
    told = f"{who}: scopes {', '.join(about.scopes)} {_where(about.directories)}"
    return Finding("key", "ok", told)


def _ttl(ttls: wire.Ttls) -> Finding:
    told = f"this service grants {ttls.min_ttl:g} to {ttls.max_ttl:g} seconds"
    return Finding("ttl", "ok", told, least_ttl=ttls.min_ttl)


def _where(directories: Sequence[str]) -> str:
    if not all(directories):
        return "for all names"
    names = (decoded(each).decode("utf-8", "backslashreplace") for each in directories)
    return f"below {', '.join(names)}"


def _way(settings: HttpSettings) -> Finding:
    if settings.tls is not None:
        return Finding("encryption", "ok", "TLS, and the server's certificate is checked")
    told = "none: anyone on the network path can read the traffic"
    if is_here(settings.host):
        told = f"none, and none needed: {settings.host} is this machine"
    return Finding("encryption", "note", told)
