"""Answers about the service: health, metrics, capabilities, limits, OpenAPI, problems; and tokens."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec import Struct
from starlette.responses import Response

from dibs.core.names import PROBE
from dibs.errors import DibsError
from dibs.model import Capabilities, Inspect, Status
from dibs.runtime.aio import AsyncRuntime
from dibs.server.api.parameters import BodyReader
from dibs.server.api.problems import PROBLEM_KINDS, ApiProblem, ProblemKind
from dibs.server.api.responses import bytes_response, json_response, text_response
from dibs.server.api.routing import PUBLIC, SIGNED_IN, Caller, route
from dibs.server.auth.credentials import PREFIX
from dibs.server.auth.key_cache import KeyCache
from dibs.server.auth.keys import KeyService
from dibs.server.leases import LeaseService
from dibs.server.limits import Limits
from dibs.server.shutdown import Shutdown
from dibs.stores.http.names import encoded
from dibs.stores.http.wire import About, Promises
from dibs.version import VERSION

METRICS_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of Prometheus' text format."""

MAX_TOKEN_BODY = 4096
"""Bytes of a request for a token, which mean nothing."""


class Well(Struct, frozen=True):
    """A server that is well."""

    status: str = "ok"


class TokenShape(Struct, frozen=True):
    """A token. `tenant` is the id of the key that it is bound to, `subdomain` its name."""

    token: str
    tenant: str
    subdomain: str


HEALTH_PATIENCE = 2.0
"""Seconds that a store has to answer a probe."""

FRESH = 1.0
"""Seconds for which an answer of the store is good for all who ask: asking often costs it nothing."""


class Health:
    """The answer of `/readyz`."""

    def __init__(self, shutdown: Shutdown, keys: KeyCache, leases: LeaseService) -> None:
        self._shutdown = shutdown
        self._keys = keys
        self._leases = leases
        self._answered = True
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Raises `ApiProblem`, 503, where requests should go to another server."""
        self._shutdown.check()
        if not self._keys.is_current:
            raise ApiProblem("unavailable", "the server cannot read its records", retry_after=1)
        if not self._leases.runtime.may_grant:
            raise ApiProblem(
                "unavailable", "the server cannot read the placements of directories", retry_after=1
            )
        await self._ask_store()
        if not self._answered:
            raise ApiProblem("unavailable", "the store does not answer", retry_after=1)

    async def _ask_store(self) -> None:
        """All who ask at a time share one look."""
        if self._asking is None:
            if self._leases.runtime.now() - self._asked_at < FRESH:
                return
            self._asking = asyncio.create_task(self._look(), name="dibs health")
        await asyncio.shield(self._asking)

    async def _look(self) -> None:
        """While any of several stores answers, there is something to do here."""
        runtime = self._leases.runtime
        try:
            self._answered = any(await asyncio.gather(*map(_answers, runtime.stores)))
        finally:
            self._asked_at = runtime.now()
            self._asking = None


async def _answers(store: AsyncRuntime) -> bool:
    try:
        async with asyncio.timeout(HEALTH_PATIENCE):
            answer = await store.call(Inspect(PROBE), HEALTH_PATIENCE)
    except (TimeoutError, DibsError):
        return False
    return isinstance(answer.reply, Status)


@dataclass(eq=False)
class ServiceRoutes:
    """Answers about one server and its service."""

    _server_id: str
    _capabilities: Callable[[], Capabilities]
    _keys: KeyService
    _limits: Limits
    _bodies: BodyReader
    _health: Health
    _metrics: Callable[[], bytes] | None
    _description: Callable[[], bytes]

    @route(
        "POST",
        ("/v1/token", "/identity/token"),
        SIGNED_IN,
        ignores_body=True,
        answers={200: TokenShape},
        problems=(403,),
        also_text=True,
    )
    async def token(self, caller: Caller) -> Response:
        """Exchange a key for a token that is good for about a minute.

        The answer is a text, or JSON if the request accepts that.
        """
        await self._bodies.read(caller, MAX_TOKEN_BODY)
        if b" " + PREFIX.encode() not in caller.headers.get(b"authorization", b""):
            raise ApiProblem(
                "forbidden", "a token cannot be exchanged for another: send the API key"
            )
        who = caller.principal
        issued = self._keys.token(who)
        if "application/json" in caller.header(b"accept"):
            return json_response(TokenShape(issued, who.key_id, who.name))
        return text_response(issued)

    @route("GET", "/v1/about", SIGNED_IN, answers={200: About})
    async def about(self, caller: Caller) -> Response:
        """What this service is and promises, and whose key this is."""
        who, promised = caller.principal, self._capabilities()
        promises = Promises(
            promised.scope,
            promised.clock,
            promised.durable,
            promised.fenced,
            promised.notifies,
            tuple(sorted(promised.survives)),
        )
        return json_response(
            About(
                self._server_id,
                VERSION,
                promises,
                who.key_id,
                who.name,
                tuple(sorted(who.scopes)),
                tuple(encoded(prefix) for prefix in who.prefixes),
            )
        )

    @route("GET", "/v1/limits", SIGNED_IN, answers={200: Limits})
    async def limits(self, _: Caller) -> Response:
        """All limits, in total and per API key."""
        return json_response(self._limits)

    @route("GET", "/v1/openapi.json", PUBLIC, answers={200: dict[str, Any]})
    async def description(self, _: Caller) -> Response:
        """This description."""
        return bytes_response(self._description(), "application/json")

    @route("GET", "/problems/{word}", PUBLIC, answers={200: ProblemKind}, problems=(404,))
    async def problem(self, _: Caller, word: str) -> Response:
        """What a problem's type means, and what to do."""
        kind = PROBLEM_KINDS.get(word)
        if kind is None:
            raise ApiProblem("no-such-route", "unknown problem type")
        return json_response(kind)

    @route("GET", "/livez", PUBLIC, answers={200: Well})
    async def live(self, _: Caller) -> Response:
        """Whether the server lives: restart one that does not answer."""
        return json_response(Well())

    @route("GET", "/readyz", PUBLIC, answers={200: Well})
    async def ready(self, _: Caller) -> Response:
        """Whether requests should be sent here: not while its store is away, or it is about to stop."""
        await self._health.check()
        return json_response(Well())

    @route("GET", "/metrics", PUBLIC, answers={200: str}, problems=(404,), media="text/plain")
    async def metrics(self, _: Caller) -> Response:
        """Counts and times, for Prometheus."""
        if self._metrics is None:
            raise ApiProblem("no-such-route", "metrics are off: set metrics = true")
        return bytes_response(self._metrics(), METRICS_FORMAT)
