"""The ledger in SQL, notifications and locks on versions of PostgreSQL beside that of all other tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.stores.port import Store
from dibs.stores.registry import store_for
from dibs.testing import ManualClock
from dibs.testing.conformance.contending import Contending
from dibs.testing.conformance.notifications import NotificationCases
from tests.servers.binaries import postgres_programs, postgres_versions
from tests.servers.fixtures import NO_POWER_CUT
from tests.servers.postgres import PostgresServer
from tests.stores.differential import PLANS, VECTORS, follow
from tests.stores.postgres.database import Database, database
from tests.stores.test_ledgers import InSql

pytestmark = pytest.mark.once

OTHERS = [
    version for version in postgres_versions() if version != str(postgres_programs()[0].version[0])
]
"""All but the one on which everything runs. Only `make torture` tests those between oldest and newest."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(each, marks=pytest.mark.long if each in OTHERS[1:-1] else ())
        for each in OTHERS
    ],
)
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


@pytest.mark.parametrize(
    "manner", ["together", "one by one", pytest.param("carefully", marks=pytest.mark.long)]
)
def test_plans_are_answered_as_by_python(manner: str, subject: Database) -> None:
    for plan in (*VECTORS[:8], *PLANS):
        follow(plan, InSql(subject, manner))


class TestThePort(NotificationCases, Contending):
    """Those parts of the conformance suite that ask most of a database."""

    url: str

    @pytest.fixture(autouse=True)
    def _database(self, url: str) -> None:
        self.url = url

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        return store_for(self.url, clock=clock)
