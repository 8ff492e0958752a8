"""What all tests have: the servers of `tests/servers`, signals, and an order that workers share well."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests import sampling  # noqa: F401 - registers the profiles

settings.load_profile("quick")  # `--hypothesis-profile=thorough` replaces it

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


@pytest.fixture(autouse=True)
def _signals_as_at_a_prompt() -> Iterator[None]:
    """What runs in the background was started with signals ignored, and would hand that on."""
    heard = dict.fromkeys((signal.SIGHUP, signal.SIGQUIT), signal.SIG_DFL)
    before = {number: signal.signal(number, action) for number, action in heard.items()}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, action in before.items():
        signal.signal(number, action)
