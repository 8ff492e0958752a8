"""A machine whose clock is off is served all the same: no clock but the server's counts."""

import time
from uuid import uuid4

import pytest

import dibs
from dibs.backends.temporal.client import pollers
from dibs.errors import BackendUnavailable
from tests.servers.temporal import TemporalServer

pytestmark = pytest.mark.once

HOUR = 3600.0


class Off:
    """A clock that is so many seconds ahead."""

    def __init__(self, by: float) -> None:
        self._by = by

    def time(self) -> float:
        return time.time() + self._by


@pytest.mark.parametrize("by", [HOUR, -HOUR])
async def test_a_clock_that_is_an_hour_off(
    url: str, by: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pollers, "time", Off(by))
    async with dibs.connect(url) as client:
        lease = await client.lock(uuid4().hex, ttl=30).acquire(wait=30)
        assert lease.token > 0
        await lease.release()
        found = {each.about: each for each in await client.examine()}
    if by > 0:
        assert found["worker"].level == "warning"
        assert "this clock seems to be ahead" in found["worker"].told
    else:
        assert found["worker"].level == "ok"


async def test_nobody_is_nobody_whatever_the_clock_says(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pollers, "time", Off(-HOUR))
    url = f"{temporal_server.url}?task_queue=nobody-{uuid4().hex}"
    async with dibs.connect(url) as client:
        with pytest.raises(BackendUnavailable, match="nobody serves"):
            await client.lock(uuid4().hex, ttl=30).acquire(wait=10)


async def test_a_queue_is_no_stray_for_a_clock_that_is_off(
    temporal_server: TemporalServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker runs there, and who asks has another queue."""
    async with dibs.connect(url) as client, client.lock(uuid4().hex, ttl=30):
        monkeypatch.setattr(pollers, "time", Off(HOUR))
        queue = url.rpartition("=")[2]
        async with dibs.connect(temporal_server.url) as other:
            found = await other.examine()
        assert not [each for each in found if repr(queue) in each.told]
