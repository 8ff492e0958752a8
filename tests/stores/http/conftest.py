"""One service for the tests of a module, and both sides that use it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.certificates import self_signed
from tests.stores.http.serving import Served
from tests.stores.redis.both_worlds import Side


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Without TLS."""
    service = Served()
    yield service
    service.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a service's own making."""
    return self_signed(tmp_path_factory.mktemp("tls") / "server.pem")


@pytest.fixture(scope="module")
def encrypted(certificate: Path) -> Iterator[Served]:
    """By TLS."""
    service = Served(certificate=certificate)
    yield service
    service.close()


@pytest.fixture(params=["async", "blocking"])
def side(request: pytest.FixtureRequest) -> Side:
    """Asyncio, and threads."""
    return Side(request.param)
