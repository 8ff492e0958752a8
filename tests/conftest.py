"""What all tests have: servers, signals, an order that workers share well, and a look for leaks."""

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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


# -- nothing is left behind ------------------------------------------------------------------------

OF_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Child processes that Python keeps until this one ends."""

WITHIN = 10.0
"""Seconds for which threads and processes may be on their way out when all tests are over."""

_first_seen: dict[str, str] = {}
"""What is there after a test and was not before it: which test that was."""


def left_behind() -> set[str]:
    """Threads that keep this process alive, and its child processes."""
    found = {
        f"thread {thread.name}"
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    }
    with suppress(OSError):  # without /proc, or it has just ended
        for listed in Path("/proc/self/task").glob("*/children"):
            for pid in listed.read_text().split():
                command = Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if not any(each in command for each in OF_PYTHON):
                    found.add(f"process {pid}: {command}")
    return found


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """At the end, as fixtures of modules and sessions may have what tests share.

    Sockets and files that nobody closes are errors too: `ResourceWarning`s are.
    """
    yield
    end = time.monotonic() + WITHIN
    while (left := left_behind()) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    assert not left, [f"{each}, since {_first_seen.get(each, '?')}" for each in sorted(left)]


@pytest.fixture(autouse=True)
def _what_is_new(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for each in left_behind():
        _first_seen.setdefault(each, request.node.nodeid)
