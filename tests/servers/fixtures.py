"""Fixtures that give a test a real store.

| fixture | is |
|---|---|
| `redis_server` | a Redis that keeps nothing, shared by this worker's tests: they leave it running |
| `redis_url` | its URL, emptied |
| `postgres_server` | a PostgreSQL, likewise shared |
| `postgres_url` | a fresh database in it, dropped afterwards |
| `postgres_servers` | `postgres_servers("16")`: likewise, of that version |
| `temporal_server` | a Temporal for development, likewise shared: each test has names of its own |
| `etcd_server` | the newest etcd, likewise |
| `kube_server` | a Kubernetes API server with Leases, likewise |
| `nats_server` | a NATS with JetStream, likewise |
| `s3_server` | an S3 server with a bucket, likewise |

A test that kills, pauses or sets up a server makes one of its own: `with RedisServer(tmp_path) as server:`.

Where a program is missing, a test that needs it is skipped; with `CI=true` it fails.
"""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
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
PUNCTUAL = {"history.timerProcessorMaxTimeShift": '"20ms"'}


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis that all tests of this worker share."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The shared Redis, emptied."""
    with redis_server.client() as client:
        client.flushall()
    return redis_server.url


@pytest.fixture(scope="session")
def postgres_servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str | None], PostgresServer]]:
    """Gives the PostgreSQL of a version that all tests of this worker share."""
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
def postgres_server(
    postgres_servers: Callable[[str | None], PostgresServer],
) -> PostgresServer:
    """The PostgreSQL that all tests of this worker share."""
    return postgres_servers(None)


@pytest.fixture(scope="session")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """A Temporal that all tests of this worker share."""
    with TemporalServer(tmp_path_factory.mktemp("temporal"), dynamic=PUNCTUAL) as server:
        yield server


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """An etcd that all tests of this worker share."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="session")
def kube_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeServer]:
    """A Kubernetes API server that all tests of this worker share."""
    with KubeServer(tmp_path_factory.mktemp("kube")) as server:
        yield server


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A NATS that all tests of this worker share."""
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server that all tests of this worker share."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh database in the shared PostgreSQL."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    """A fixture whose server is missing skips its tests: all of them, if they share it."""
    with missing_is_skipped():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """So does a test that wanted one itself."""
    with missing_is_skipped():
        return (yield)


class missing_is_skipped:  # noqa: N801 -- read as a phrase
    """A block in which a missing server skips the test, or fails it where CI must have all."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MissingServer):
            if os.environ.get("CI") == "true":
                pytest.fail(str(error), pytrace=False)
            pytest.skip(str(error))
