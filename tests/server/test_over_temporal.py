"""A service whose locks lie in Temporal, where records have no place."""

from pathlib import Path

import pytest

from dibs.sync import connect
from tests.server.world import LONG, World, acquire, acquired, released
from tests.servers.temporal import TemporalServer
from tests.stores.temporal.serving import brokers_for
from tests.temporal.workers import unique

pytestmark = [pytest.mark.once, pytest.mark.timeout(180)]


def test_clients_of_the_service_and_of_temporal_exclude_each_other(
    temporal_server: TemporalServer, tmp_path: Path
) -> None:
    name, records = unique("order"), f"sqlite:///{tmp_path / 'records.db'}"
    with (
        brokers_for(temporal_server) as store,
        World.over(leases=store, records=records) as world,
        connect(store) as client,
    ):
        http = world.client("acquire")
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
