"""A service whose locks lie in Temporal, where records have no place."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.sync import connect
from tests.server.world import LONG, World, acquire, acquired, released
from tests.servers.temporal import TemporalServer
from tests.stores.temporal.serving import brokers_for
from tests.temporal.workers import unique

pytestmark = [pytest.mark.once, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def store(temporal_server: TemporalServer) -> Iterator[str]:
    with brokers_for(temporal_server) as url:
        yield url


@pytest.fixture(scope="module")
def world(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    records: Path = tmp_path_factory.mktemp("service") / "records.db"
    with World.over(leases=store, records=f"sqlite:///{records}") as world:
        yield world


def test_clients_of_the_service_and_of_temporal_exclude_each_other(
    world: World, store: str
) -> None:
    name = unique("order")
    http = world.client("acquire")
    with connect(store) as client:
        with client.lock(name, label="a worker of Temporal's") as lease:
            refused = acquire(http, name)
            assert refused.status_code == 409
            assert "a worker of Temporal's" in refused.json()["detail"]
        held = acquired(http, name, wait=20)
        assert held["sequencer"] > lease.token
        assert client.lock(name).try_acquire() is None
        released(http, name, held)
        with client.lock(name, wait=LONG):
            pass
