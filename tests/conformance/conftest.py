"""Which cases are left out where time is short."""

import os

import pytest

for _part in ("electing", "nesting", "readers", "together"):
    pytest.register_assert_rewrite(f"tests.conformance.{_part}")

TOLD_ELSEWHERE = {
    "TestTemporal": {"blocking"},  # goes the other side's way but for the last step, and slowly
    "TestRediss": {"async", "blocking"},  # Redis, by TLS
    "TestValkey": {"async", "blocking"},  # Redis by another name
    "TestValkeys": {"async", "blocking"},
    "TestHttps": {"async", "blocking"},  # the same service, by TLS
    "TestEtcds": {"async", "blocking"},  # etcd, by TLS
    "TestKubernetes": {"blocking"},  # in the loop of a thread, as etcd's
    "TestNats": {"blocking"},
    "TestS3": {"async", "blocking"},  # on the same adapter, and slow
}
"""The sides of a store that have nearly all in common with what is tested whole."""

TELLING = frozenset({"NotificationCases", "Contending", "Clients"})
"""So of these the parts that tell enough, unless `DIBS_WHOLE_CONFORMANCE` is set."""

DEAR = {
    "test_every_vector_is_answered_as_the_ledger_does": {"blocking"},  # asyncio tells enough
    "test_a_full_batch": {"TestTemporal"},  # a workflow for each of very many keys
    "test_each_is_released_alone": {"TestTemporal"},
}
"""Cases that take long, and the sides or stores for which they are left out likewise."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("DIBS_WHOLE_CONFORMANCE"):
        return
    told = [item for item in items if _is_told_elsewhere(item)]
    config.hook.pytest_deselected(items=told)
    items[:] = [item for item in items if item not in told]


def _is_told_elsewhere(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or item.parent is None or item.cls is None:
        return False
    case = item.originalname
    if item.parent.name in DEAR.get(case, ()) or _side(item) in DEAR.get(case, ()):
        return True
    if _side(item) not in TOLD_ELSEWHERE.get(item.parent.name, ()):
        return False
    parts = {part.__name__ for part in item.cls.__mro__ if case in vars(part)}
    return bool(parts) and not parts & TELLING


def _side(item: pytest.Item) -> str:
    """Of `test_a_case[async]` it is `async`."""
    return item.name.rpartition("[")[2].removesuffix("]")
