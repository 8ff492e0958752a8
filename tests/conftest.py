"""What all tests have: the servers of `tests/servers`, and an order that several workers share well."""

import gc
import os

import pytest

pytest_plugins = ["tests.servers.fixtures"]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long is begun first: what is marked `serial` by one worker, what is `slow` by the others.

    With `--dist worksteal` each worker begins with its share, an equal part of the list, and who has
    done with it takes from the end of another's. So what is `serial` runs one after the other.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    serial = [item for item in items if item.get_closest_marker("serial")]
    slow = [item for item in items if item.get_closest_marker("slow") and item not in serial]
    first = {*serial, *slow}
    rest = [item for item in items if item not in first]
    shares = [serial + slow]
    if workers > 1:
        shares = [serial, *(slow[number :: workers - 1] for number in range(workers - 1))]
    size = len(items) // workers
    items.clear()
    for share in shares:
        room = max(size - len(share), 0)
        items += share + rest[:room]
        del rest[:room]
    items += rest


def pytest_collection_finish() -> None:
    """What is here by now stays to the end: no collection of garbage needs to look through it."""
    gc.collect()
    gc.freeze()
