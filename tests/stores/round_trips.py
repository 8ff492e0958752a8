"""What a server has counted of our calls, beside clients whose time stands still."""

import re
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs.session import StoreSession
from dibs.stores.port import Store
from dibs.stores.postgres import PostgresStore
from dibs.stores.redis import RedisStore
from dibs.testing import ManualClock
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.stores import sides
from tests.stores.redis.counting import calls
from tests.stores.sides import Mode as Mode


class RedisCounter:
    """How many scripts were called so far."""

    def __init__(self, server: RedisServer, url: str) -> None:
        self._server = server
        self._url = url

    def store(self) -> Store:
        return RedisStore(self._url)

    def trips(self) -> int:
        count = calls(self._server)
        return sum(count.get(name, 0) for name in ("evalsha", "eval", "fcall"))


class PostgresCounter:
    """How many functions of ours were called so far, as the server's log has them.

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


type Counter = RedisCounter | PostgresCounter


def counter_of(store: str, request: pytest.FixtureRequest) -> Counter:
    """The server of that kind that the tests of this worker share, emptied."""
    server, url = (request.getfixturevalue(f"{store}_{what}") for what in ("server", "url"))
    return RedisCounter(server, url) if store == "redis" else PostgresCounter(server, url)


class Side(sides.Side):
    """Clients of one side, on a clock that is moved by hand; the server's own goes on."""

    def __init__(self, mode: Mode, counter: Counter) -> None:
        super().__init__(mode)
        self.clock = ManualClock()
        self._counter = counter
        self._module: Any = dibs if mode == "async" else dibs.sync
        self._counted = 0

    def client(self) -> Any:
        """One more client, as if of another process."""
        session = StoreSession(self._counter.store(), clock=self.clock)
        return self.connect(self._module.Client(session))

    def all_of(self, *members: Any) -> Any:
        """Several at once."""
        return self._module.AllOf(*members)

    def trips(self) -> int:
        """How many round trips there were since the last time."""
        before, self._counted = self._counted, self._counter.trips()
        return self._counted - before
