"""Servers that only this suite uses, and which cases are left out where time is short."""

import os
from collections.abc import Iterator

import pytest

from tests.servers.etcd import EtcdServer
from tests.servers.moto import MotoServer
from tests.servers.redis import RedisServer

for _part in ("circles", "readers", "tasklocks"):
    pytest.register_assert_rewrite(f"tests.conformance.{_part}")


@pytest.fixture(scope="session")
def encrypted_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("rediss"), tls=True) as server:
        yield server


@pytest.fixture(scope="session")
def encrypted_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcds"), tls=True) as server:
        yield server


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    with MotoServer(tmp_path_factory.mktemp("moto")) as server:
        yield server


# ---- what is left out, unless `DIBS_WHOLE_CONFORMANCE` is set --------------------------------------

BOTH = frozenset({"async", "blocking"})
ONE = frozenset({"async"})

LEDGERS = {
    **dict.fromkeys(("TestMemory", "TestSqlite"), BOTH),
    **dict.fromkeys(("TestRedis", "TestPostgresql", "TestHttp"), ONE),
    **dict.fromkeys(("TestDatedCells", "TestUndatedCells"), ONE),
}
"""Stores that have a ledger or rules of their own, and the sides on which they are tested whole."""

MESSENGERS = {"TestEtcd", "TestKubernetes", "TestNats", "TestTemporal"}
"""Stores that keep or carry what another one's ledger says. Threads use them in the loop of a thread."""
MESSAGES = {"Batches", "ReadingCases", "Naming", "TokenCases", "CircleClients", "Vectors"}
"""The parts of the suite that show whether they do so, besides those that all stores pass."""

FOR_ALL = {"NotificationCases", "Contending", "Clients"}
"""These run on both sides of all stores, also of those that are another one by TLS."""
FEWER = {"TestValkey": {"Clients"}, "TestValkeys": {"Clients"}, "TestS3": {"Clients", "Contending"}}
"""Only these for another one by its name, and for S3, which has no notifications and is slow."""

PRIMITIVES = {"ReaderClients", "TaskClients"}
PRIMITIVES_ON = {**LEDGERS, "TestPostgresql": frozenset(), "TestUndatedCells": frozenset()}
"""Primitives touch no store, so some stores are enough for them."""

DEAR = {
    "test_every_vector_is_answered_as_the_ledger_does": {"blocking"},  # asyncio tells enough
    "test_a_full_batch": {"TestTemporal"},  # a workflow for each of very many keys
    "test_each_is_released_alone": {"TestTemporal"},
}
"""Cases that take long, and the sides or stores for which they are left out likewise."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("DIBS_WHOLE_CONFORMANCE"):
        return
    left_out = [item for item in items if _is_told_elsewhere(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_told_elsewhere(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or item.parent is None or item.cls is None:
        return False
    store, case, side = item.parent.name, item.originalname, item.name.rpartition("[")[2][:-1]
    if store in DEAR.get(case, ()) or side in DEAR.get(case, ()):
        return True
    parts = {part.__name__ for part in item.cls.__mro__ if case in vars(part)}
    if not parts or parts & FOR_ALL:
        return bool(parts) and not parts & FEWER.get(store, FOR_ALL)
    if store in MESSENGERS:
        return side not in ONE or not parts & MESSAGES
    return side not in (PRIMITIVES_ON if parts & PRIMITIVES else LEDGERS).get(store, ())
