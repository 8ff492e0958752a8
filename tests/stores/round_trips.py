"""What a server has counted of our calls; and clients of both worlds whose time stands still."""

import asyncio
import re
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, Literal, Protocol

import pytest

import dibs
import dibs.sync
from dibs.runtime.port import step
from dibs.session import StoreSession
from dibs.stores.port import Store
from dibs.stores.postgres import PostgresStore
from dibs.stores.redis import RedisStore
from dibs.testing import ManualClock
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.stores.redis.counting import calls

type Mode = Literal["async", "blocking"]

WITHIN = 20.0
"""Seconds after which what doesn't come won't come."""


class Counter(Protocol):
    """A server that counts."""

    def store(self) -> Store:
        """It, as clients know it."""

    def trips(self) -> int:
        """How many round trips our clients have made so far."""


class RedisCounter:
    """Every script that was called; a node counts what it was asked itself."""

    def __init__(self, servers: Iterable[RedisServer], url: str) -> None:
        self._servers = list(servers)
        self._url = url

    def store(self) -> Store:
        return RedisStore(self._url)

    def trips(self) -> int:
        counts = [calls(server) for server in self._servers]
        return sum(count.get(name, 0) for count in counts for name in ("evalsha", "eval", "fcall"))


class PostgresCounter:
    """Every call of a function of ours, as the server's log has them.

    A connection's first words aren't counted, nor is upkeep, which sweeps once in a while.
    """

    _CALL = re.compile(r" LOG:  (?:execute [^:]*|statement): SELECT dibs\.(?!sweep\()")

    def __init__(self, server: PostgresServer, url: str) -> None:
        self._log = server.folder / "postgres.log"
        self._url = url
        with server.connect() as admin:
            admin.execute(
                f"ALTER DATABASE {url.rpartition('/')[2]} SET log_statement TO 'all'".encode()
            )

    def store(self) -> Store:
        return PostgresStore(self._url)

    def trips(self) -> int:
        return len(self._CALL.findall(self._log.read_text(errors="replace")))


def counter_of(store: str, request: pytest.FixtureRequest) -> Counter:
    """The server of that kind that the tests of this worker share, emptied."""
    server, url = (request.getfixturevalue(f"{store}_{what}") for what in ("server", "url"))
    return RedisCounter([server], url) if store == "redis" else PostgresCounter(server, url)


class Side:
    """Clients of one world, on a clock that is moved by hand; the server's own goes on."""

    def __init__(self, mode: Mode, counter: Counter) -> None:
        self.mode = mode
        self.counter = counter
        self.clock = ManualClock()
        self._module: Any = dibs if mode == "async" else dibs.sync
        self._clients: list[Any] = []
        self._counted = 0

    def run(self, case: Coroutine[Any, Any, None]) -> None:
        """Run a case to its end."""
        body = self._closing(case)
        if self.mode == "async":
            asyncio.run(body)
        else:
            step(body)

    async def _closing(self, case: Awaitable[None]) -> None:
        try:
            await case
        finally:
            for client in self._clients:
                await self.get(client.close())

    def client(self) -> Any:
        """One more client, as if of another process."""
        client = self._module.Client(StoreSession(self.counter.store(), clock=self.clock))
        self._clients.append(client)
        return client

    def all_of(self, *members: Any) -> Any:
        """Several at once."""
        return self._module.AllOf(*members)

    async def get(self, value: Any) -> Any:
        """What a face of this world returns."""
        return await value if self.mode == "async" else value

    def start(self, call: Callable[[], Any]) -> Any:
        """Have a call wait in a task or thread of its own; `end` gives its result."""
        if self.mode == "async":
            return asyncio.ensure_future(call())
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # told by `end`
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future

    async def end(self, started: Any) -> Any:
        """The result of a call that was started."""
        return await started if self.mode == "async" else started.result(WITHIN)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for what no event tells of."""
        end = time.monotonic() + WITHIN
        while not condition():
            assert time.monotonic() < end, what
            if self.mode == "async":
                await asyncio.sleep(0.002)
            else:
                time.sleep(0.002)

    def trips(self) -> int:
        """How many round trips there were since the last time."""
        before, self._counted = self._counted, self.counter.trips()
        return self._counted - before
