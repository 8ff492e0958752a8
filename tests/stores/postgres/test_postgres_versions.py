"""The same on every version of PostgreSQL that is here: a little of everything.

All that there is runs on the one that is found first. What of it depends on what an SQL function, a plan, a
lock or a notification does runs here, on the others.
"""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from dibs import AcquireTimeout, BackendUnavailable
from dibs.stores.port import Store
from dibs.stores.postgres import schema
from dibs.stores.postgres.schema import FORMAT, NEWEST, VERSION_QUERY
from dibs.stores.registry import store_for
from dibs.sync import connect
from dibs.testing import ManualClock
from dibs.testing.conformance.batches import Batches
from dibs.testing.conformance.contending import Contending
from dibs.testing.conformance.notifications import NotificationCases
from dibs.testing.conformance.queueing import Queueing
from dibs.testing.conformance.sharing import Sharing
from tests.servers.binaries import postgres_programs, postgres_versions
from tests.servers.fixtures import NO_POWER_CUT
from tests.servers.postgres import PostgresServer
from tests.stores.differential import PLANS, VECTORS, follow
from tests.stores.postgres.database import Database, database, migrate
from tests.stores.test_ledgers import InSql

pytestmark = pytest.mark.once

OTHERS = [
    version for version in postgres_versions() if version != str(postgres_programs()[0].version[0])
]
"""All but the one on which everything runs."""


@pytest.fixture(scope="module", params=OTHERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PostgresServer]:
    """A server of each version, one after the other."""
    folder = tmp_path_factory.mktemp(f"postgres-{request.param}-")
    with PostgresServer(folder, version=request.param, options=NO_POWER_CUT) as found:
        yield found


@pytest.fixture(scope="module")
def url(server: PostgresServer) -> str:
    """A database there, for all who have names of their own."""
    return server.new_database()


@pytest.fixture(scope="module")
def subject(server: PostgresServer) -> Iterator[Database]:
    """Another, whose time is told by the test."""
    with database(server.new_database()) as found:
        yield found


def test_from_nothing_to_the_newest(server: PostgresServer) -> None:
    with psycopg.connect(server.new_database(), autocommit=True) as connection:
        assert connection.info.server_version // 10_000 == server.program.version[0]
        assert migrate(connection) == list(range(1, NEWEST + 1))
        rows = connection.execute(VERSION_QUERY.encode()).fetchall()
        assert schema.version_of(rows) == (NEWEST, FORMAT)


@pytest.mark.parametrize("manner", ["together", "one by one", "carefully"])
def test_plans_are_answered_as_by_python(manner: str, subject: Database) -> None:
    for plan in (*VECTORS[:8], *PLANS):
        follow(plan, InSql(subject, manner))


def test_the_guard(subject: Database) -> None:
    guard = "SELECT dibs.guard(%s, %s)"
    subject.execute(guard, ["order:42", 5])
    subject.execute(guard, ["order:42", 9])
    with pytest.raises(psycopg.Error, match="order:42 is no longer yours") as raised:
        subject.execute(guard, ["order:42", 8])
    assert raised.value.sqlstate == "ZDF01"


def test_a_transaction_of_the_users_own(url: str) -> None:
    with connect(url) as client, connect(url) as others, psycopg.connect(url) as connection:
        client.lock("within").acquire(within=connection).detach()
        with pytest.raises(BackendUnavailable, match="has not ended"):
            others.lock("within").try_acquire()
        connection.rollback()
        lease = client.lock("within").acquire(within=connection)
        connection.commit()
        with lease:
            with pytest.raises(AcquireTimeout):
                others.lock("within").acquire(within=connection)
            connection.execute("SELECT dibs.guard('within', %s)", [lease.token])
            connection.commit()
        assert not others.lock("within").locked()


class TestThePort(Sharing, Queueing, NotificationCases, Batches, Contending):
    """Those parts of the conformance suite that ask most of a database."""

    url: str

    @pytest.fixture(autouse=True)
    def _database(self, url: str) -> None:
        self.url = url

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for(self.url, clock=clock)
