"""What each thing costs in round trips, as the servers count them, on both sides."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs.session import StoreSession
from dibs.stores.port import MAX_BATCH
from dibs.stores.registry import store_for
from dibs.testing import ManualClock
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.stores import sides
from tests.stores.redis.counting import calls
from tests.stores.sides import Mode, stepped

TTL = 30.0
ASKED = ("evalsha", "eval", "fcall", "select", "auth")
STATEMENT = re.compile(
    r" LOG:  (?:execute [^:]*|statement): (?:SELECT dibs\.(?!sweep\()|BEGIN|COMMIT)"
)
"""But for the first words of a connection, and upkeep, which sweeps once in a while."""


class Side(sides.Side):
    """Clients of one side, on a clock that is moved by hand; the server's own goes on."""

    def __init__(self, mode: Mode, server: RedisServer | PostgresServer, url: str) -> None:
        super().__init__(mode)
        self.clock = ManualClock()
        self._server = server
        self._url = url
        self._module: Any = dibs if mode == "async" else dibs.sync
        self._counted = 0
        if isinstance(server, PostgresServer):
            with server.connect() as admin:
                name = url.rpartition("/")[2]
                admin.execute(f"ALTER DATABASE {name} SET log_statement TO 'all'".encode())

    def client(self) -> Any:
        """One more client, as if of another process."""
        session = StoreSession(store_for(self._url), clock=self.clock)
        return self.connect(self._module.Client(session))

    def trips(self) -> int:
        """How many round trips there were since the last time."""
        before = self._counted
        if isinstance(self._server, RedisServer):
            counts = calls(self._server)
            self._counted = sum(counts.get(name, 0) for name in ASKED)
        else:
            log = (self._server.folder / "postgres.log").read_text(errors="replace")
            self._counted = len(STATEMENT.findall(log))
        return self._counted - before


@pytest.fixture(params=["redis", "postgres"])
def store(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=["async", "blocking"])
def side(request: pytest.FixtureRequest, store: str) -> Side:
    server, url = (request.getfixturevalue(f"{store}_{what}") for what in ("server", "url"))
    return Side(request.param, server, url)


async def held(side: Side, client: Any, names: Sequence[str]) -> list[Any]:
    """Leases on all of these; asyncio's are acquired together."""
    acquires = [client.lock(name, ttl=TTL).acquire for name in names]
    if side.mode == "blocking":
        return [acquire() for acquire in acquires]
    return [await started for started in [side.start(acquire) for acquire in acquires]]


async def let_go(side: Side, leases: Sequence[Any]) -> None:
    for lease in leases:
        await side.get(lease.release())


@stepped
async def test_an_acquire_is_one_round_trip_and_a_release_is_one(side: Side) -> None:
    mine, theirs = (side.client().lock("a", ttl=TTL) for _ in range(2))
    lease = await side.get(mine.acquire())
    assert await side.get(theirs.try_acquire()) is None
    await side.get(lease.release())  # connected from here on
    side.trips()
    for _ in range(3):
        lease = await side.get(mine.acquire())
        assert side.trips() == 1
        assert await side.get(theirs.try_acquire()) is None
        assert side.trips() == 1
        await side.get(lease.release())
        assert side.trips() == 1


@stepped
async def test_a_hand_over_is_a_place_a_release_and_a_push_and_claims_travel_together(
    side: Side,
) -> None:
    names = ["a", "b", "c"]
    holder, waiter = side.client(), side.client()
    await connect(side, waiter)
    leases = await held(side, holder, names)
    started = []
    for name in names:
        side.trips()
        started.append(side.start(waiter.lock(name, ttl=TTL).acquire))
        seen = 1
        while not (await side.get(holder.status(name))).waiting:
            seen += 1
        assert side.trips() == 1 + seen, "it asked more than once for its place"
    granted = []
    for lease, waiting in zip(leases, started, strict=True):
        await side.get(lease.release())
        granted.append(await side.end(waiting))
        assert side.trips() == 1, "the release alone: what was granted was pushed"
    window = max(lease.remaining for lease in granted)
    side.clock.advance(2.0)  # more than a third of the window
    assert side.trips() == 1
    assert min(lease.remaining for lease in granted) > window, "claimed, for the whole ttl"
    await let_go(side, granted)


async def connect(side: Side, client: Any) -> None:
    """Have a client waited and claimed: threads begin to listen then, and the keeper connects."""
    lease = await side.get(client.lock("before", ttl=TTL).acquire())
    waiting = side.start(client.lock("before", ttl=TTL).acquire)
    while not (await side.get(client.status("before"))).waiting:
        pass
    await side.get(lease.release())
    granted = await side.end(waiting)
    side.clock.advance(2.0)
    await side.get(granted.release())


@stepped
async def test_renewals_travel_by_the_batch(side: Side) -> None:
    client = side.client()
    leases = await held(side, client, [f"k{number}" for number in range(MAX_BATCH + 1)])
    side.clock.advance(TTL / 3)  # the keeper has connected from here on
    side.trips()
    side.clock.advance(TTL / 3)
    assert side.trips() == 2
    assert min(lease.remaining for lease in leases) > TTL / 2
    await let_go(side, leases)
