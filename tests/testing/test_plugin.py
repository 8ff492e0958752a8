"""The pytest plugin, as a project that uses it sees it."""

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from dibs.testing import ManualClock
from tests.pages import blocks

pytest_plugins = ["pytester"]

PASSING = """
import dibs
import pytest
from dibs import LeaseLost
from dibs.sync import Lock

async def test_a_bare_lock_uses_the_client(dibs_client):
    async with dibs.Lock("a"):
        assert await dibs_client.lock("a").locked()

def test_stores_are_fresh_and_the_clock_ends_what_is_not_renewed(dibs_client, dibs_clock):
    lease = Lock("a", ttl=30, auto_renew=False).acquire()
    assert Lock("a").try_acquire() is None
    dibs_clock.advance(29)
    assert (lease.lost, lease.reason) == (True, "expired")
    dibs_clock.advance(2)
    assert not Lock("a").locked()

def test_expire_reaches_a_blocking_holder(dibs_client, dibs_expire):
    lost = []
    lease = Lock("a", on_lost=lost.append).acquire()
    assert dibs_expire(lease) == 1
    assert lease.lost and lost == [lease]
    with pytest.raises(LeaseLost):
        lease.ensure()
    assert dibs_expire(lease) == 0

@pytest.mark.dibs_may_leak
def test_steal_puts_another_holder_in(dibs_client, dibs_steal):
    lock = Lock("a")
    lease = lock.acquire()
    assert dibs_steal(lock) > lease.token
    assert lease.lost
    assert lock.try_acquire() is None
    assert [holder.owner for holder in lock.status().holders] == ["thief"]

kept = []

@pytest.mark.dibs_may_leak
async def test_a_marked_test_may_leak(dibs_client):
    kept.append(await dibs.Lock("forgotten").acquire())
"""

LEAKING = """
import dibs
from dibs.sync import Lock

kept = []

def test_blocking(dibs_client):
    kept.append(Lock("forgotten").acquire())

async def test_async(dibs_client):
    kept.append(await dibs.Lock("forgotten").acquire())

def test_that_fails(dibs_client):
    kept.append(Lock("of a failure").acquire())
    raise LookupError("mine")
"""


@pytest.mark.multiprocess
def test_the_fixtures_do_what_they_promise_and_a_leak_fails_the_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
        "filterwarnings = error\n"
    )
    of_the_page = blocks("testing.md")[0]
    pytester.makepyfile(test_passing=PASSING, test_page=of_the_page, test_leaking=LEAKING)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist")
    passing = (PASSING + of_the_page).count("def test_")
    expected = {"passed": passing, "failed": LEAKING.count("def test_")}
    assert result.parseoutcomes() == expected, result.stdout.str()
    result.stdout.fnmatch_lines_random(["*lock 'forgotten', held by *", "*LookupError: mine*"])


def test_loading_the_plugin_imports_no_client() -> None:
    code = (
        "import sys, dibs.testing.plugin;"
        "print([m for m in sys.modules if m.startswith('dibs.testing.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['dibs.testing.plugin']"


# ---- the clock -------------------------------------------------------------------------------------


def test_the_wall_clock_goes_with_the_clock_however_small_the_steps_are() -> None:
    clock = ManualClock(now=5.0, stamp=7_000_000)
    for _ in range(3000):
        clock.advance(1e-3 / 3)
    assert clock.stamp() == 8_000_000
    clock.step_stamp(-3)
    assert clock.stamp() == 5_000_000, "it steps alone"
    assert clock.now() == pytest.approx(6)
    for seconds in (-1, float("nan")):
        with pytest.raises(ValueError, match="forwards"):
            clock.advance(seconds)


def test_callbacks_are_called_in_the_order_of_time_while_the_clock_stands_at_each() -> None:
    clock, seen = ManualClock(now=0), list[tuple[str, float]]()

    def note(name: str) -> Callable[[], None]:
        return lambda: seen.append((name, clock.now()))

    def beat() -> None:
        note("beat")()
        clock.at(clock.now() + 1.5, beat)

    for when, name in ((3, "third"), (1, "first"), (1, "second"), (5, "never")):
        clock.at(when, note(name))
    cancel = clock.at(1, note("cancelled"))
    clock.at(1.5, beat)
    cancel()
    cancel()
    clock.advance(4)
    assert seen == [("first", 1), ("second", 1), ("beat", 1.5), ("third", 3), ("beat", 3)]
    assert (clock.now(), clock.next_due) == (4, 4.5)


def test_what_is_overdue_is_called_aside_and_an_error_leaves_the_clock_where_it_happened() -> None:
    clock, caller = ManualClock(now=10), SimpleQueue[threading.Thread]()
    clock.at(10, lambda: caller.put(threading.current_thread()))
    assert caller.get(timeout=5) is not threading.current_thread()
    clock.at(11, lambda: 1 // 0)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        clock.advance(5)
    assert clock.now() == 11


def test_threads_advance_in_turns() -> None:
    clock = ManualClock(now=0)
    late: list[float] = []
    for tick in range(1, 401):
        clock.at(tick, lambda tick=tick: late.append(clock.now() - tick))  # type: ignore[misc]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: clock.advance(1), range(400)))
    assert clock.now() == 400
    assert late == [0] * 400
