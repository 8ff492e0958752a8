"""Servers that only this suite uses, and which cases are left out where time is short."""

import os

import pytest

from tests.servers.etcd import EtcdServer
from tests.servers.fixtures import shared
from tests.servers.redis import RedisServer

pytest.register_assert_rewrite("tests.conformance.primitives")


encrypted_redis = shared(RedisServer, tls=True)
encrypted_etcd = shared(EtcdServer, tls=True)


# ---- which parts of the suite each store runs, unless `DIBS_WHOLE_CONFORMANCE` is set ---------------

RULES = {"HoldingCases", "Sharing", "Queueing", "Revoking"}
CARRIED = {"Batches", "ReadingCases", "Naming", "TokenCases", "CircleClients", "Vectors"}
"""What shows whether a store keeps and carries what another one's ledger says."""
LOCKS, CONTENDING = {"Clients"}, {"Contending"}
USERS = LOCKS | CONTENDING | {"NotificationCases"}
PRIMITIVES = {"ReaderClients", "TaskClients"}
"""These touch no store, so some stores are enough for them."""
ALL = RULES | CARRIED | USERS | PRIMITIVES
NONE: set[str] = set()

LEDGERS = ("Memory", "Sqlite", "Redis", "Http", "DatedCells")
"""Stores that have a ledger or rules of their own. `tests/stores/test_ledgers.py` tests PostgreSQL's."""
MESSENGERS = ("Etcd", "Kubernetes", "Nats", "Temporal")
"""Stores that keep or carry what another one's ledger says. Threads use them as they use cells."""

PARTS: dict[str, dict[str, set[str]]] = {
    "async": {
        **dict.fromkeys(LEDGERS, ALL),
        "UndatedCells": ALL - PRIMITIVES,
        **dict.fromkeys(("Postgresql", *MESSENGERS), CARRIED | USERS),
        "S3": LOCKS | CONTENDING,  # it has no notifications, and is slow
        **dict.fromkeys(("Rediss", "Valkey", "Valkeys", "Etcds", "Https"), LOCKS),
    },
    "blocking": {  # the vectors are for asyncio
        **dict.fromkeys((*LEDGERS, "Postgresql"), USERS),
        **dict.fromkeys(("Memory", "Sqlite"), ALL - {"Vectors"}),
        **dict.fromkeys((*MESSENGERS, "UndatedCells"), CONTENDING),
        **dict.fromkeys(("Rediss", "Https"), LOCKS),
        **dict.fromkeys(("S3", "Valkey", "Valkeys", "Etcds"), NONE),
    },
}

DEAR = {
    "test_a_full_batch": {"Kubernetes", "Temporal"},
    "test_each_is_released_alone": {"Kubernetes", "Temporal"},
    "test_they_rise_though_idle_keys_are_forgotten": {"Kubernetes", "Nats", "Temporal"},
}
"""Cases that need very many keys, and the stores to which each key is dear."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("DIBS_WHOLE_CONFORMANCE"):
        return
    left_out = [item for item in items if isinstance(item, pytest.Function) and _is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_left_out(item: pytest.Function) -> bool:
    if item.cls is None:
        return False
    store, case = item.cls.__name__.removeprefix("Test"), item.originalname
    if store in DEAR.get(case, ()):
        return True
    parts = {part.__name__ for part in item.cls.__mro__ if case in vars(part)}
    return parts <= ALL - PARTS[str(item.callspec.params["world"])].get(store, ALL)
