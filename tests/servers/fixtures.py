"""Fixtures that give a test a real store.

Each worker starts a server once, when the first test wants its fixture: `redis_server`, `postgres_server`,
`temporal_server`, `etcd_server`, `kube_server`, `nats_server`, `s3_server`. Tests leave it running.
`redis_url` is emptied, `postgres_url` a new database, `postgres_servers("16")` a PostgreSQL of that version.

A test that kills, pauses or sets up a server makes one of its own: `with RedisServer(tmp_path) as server:`.

Where a program is missing, a test that needs it is skipped; with `CI=true` it fails.
"""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.servers.binaries import MissingServer
from tests.servers.etcd import EtcdServer
from tests.servers.kube import KubeServer
from tests.servers.nats import NatsServer
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.servers.s3 import S3Server
from tests.servers.temporal import TemporalServer

# These are only for a crash of the whole machine, which would end the tests too.
NO_POWER_CUT = {"fsync": "off", "full_page_writes": "off"}

# A timer of Temporal's comes up to a second late otherwise, and these tests wait for many.
PUNCTUAL = {
    "history.timerProcessorMaxTimeShift": '"20ms"',
    "history.defaultWorkflowTaskTimeout": '"4s"',  # workers without a cache lose a task now and then
}


def shared(make: Callable[..., Any], **options: Any) -> Any:
    """A fixture: the server that all tests of this worker share."""

    @pytest.fixture(scope="session")
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
        with make(tmp_path_factory.mktemp(make.__name__), **options) as server:
            yield server

    return server


redis_server = shared(RedisServer)
temporal_server = shared(TemporalServer, dynamic=PUNCTUAL)
etcd_server = shared(EtcdServer)
kube_server = shared(KubeServer)
nats_server = shared(NatsServer)
s3_server = shared(S3Server)


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    with redis_server.client() as client:
        client.flushall()
    return redis_server.url


@pytest.fixture(scope="session")
def postgres_servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str | None], PostgresServer]]:
    running: dict[str | None, PostgresServer] = {}
    with ExitStack() as stack:

        def server(version: str | None = None) -> PostgresServer:
            if version not in running:
                folder = tmp_path_factory.mktemp(f"postgres-{version or 'any'}-")
                new = PostgresServer(folder, version=version, options=NO_POWER_CUT)
                running[version] = stack.enter_context(new)
            return running[version]

        yield server


@pytest.fixture(scope="session")
def postgres_server(postgres_servers: Callable[[str | None], PostgresServer]) -> PostgresServer:
    return postgres_servers(None)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url)


@contextmanager
def missing_is_skipped() -> Generator[None]:
    """A missing server skips the test, or fails it where CI must have all."""
    try:
        yield
    except MissingServer as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    """A fixture whose server is missing skips its tests: all of them, if they share it."""
    with missing_is_skipped():
        return (yield)


pytest_runtest_call = pytest_runtest_setup
"""So does a test that wanted one itself."""
