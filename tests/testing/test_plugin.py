"""The pytest plugin, as a project that uses it sees it."""

import subprocess
import sys
import threading
from importlib.metadata import entry_points

import pytest

from dibs.testing import ManualClock

pytest_plugins = ["pytester"]

INSTALLED = bool([point for point in entry_points(group="pytest11") if point.name == "dibs"])


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with the plugin on, in which pytest runs apart from us."""
    options = "" if INSTALLED else "-p dibs.testing.plugin"
    pytester.makeini(
        f"[pytest]\naddopts = {options}\nasyncio_mode = auto\n"
        "asyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    return pytester


def run(project: pytest.Pytester, source: str) -> pytest.RunResult:
    project.makepyfile(source)
    return project.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist")


PASSING = """
import asyncio

import dibs
import dibs.sync
import pytest
from dibs import LeaseLost
from dibs.sync import Lock

async def test_a_bare_lock_uses_the_client(dibs_client):
    async with dibs.Lock("a") as lease:
        assert await dibs_client.lock("a").locked()
        assert lease.token

def test_a_bare_blocking_lock_uses_it_too(dibs_client):
    with Lock("a"):
        assert Lock("a").try_acquire() is None

def test_stores_are_fresh(dibs_client):
    assert not Lock("a").locked()

def test_the_clock_steps_the_keeper(dibs_client, dibs_clock):
    with Lock("a", ttl=30) as lease:
        dibs_clock.advance(600)
        assert not lease.lost
        assert lease.remaining > 10

def test_the_clock_ends_what_is_not_renewed(dibs_client, dibs_clock):
    lease = Lock("a", ttl=30, auto_renew=False).acquire()
    dibs_clock.advance(29)
    assert lease.lost
    assert lease.reason == "expired"
    dibs_clock.advance(2)
    assert not Lock("a").locked()

async def test_expire_reaches_the_holder(dibs_client, dibs_expire):
    lock = dibs.Lock("a")
    with pytest.raises(LeaseLost):
        async with lock:
            assert dibs_expire(lock) == 1
            await asyncio.sleep(10)
    assert not await lock.locked()

def test_expire_reaches_a_blocking_holder(dibs_client, dibs_expire):
    lost = []
    lease = Lock("a", on_lost=lost.append).acquire()
    dibs_expire(lease)
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
def test_a_marked_test_may_leak(dibs_client):
    kept.append(Lock("forgotten").acquire())

@pytest.mark.dibs_may_leak
async def test_a_marked_coroutine_may_leak(dibs_client):
    kept.append(await dibs.Lock("forgotten").acquire())
"""


def test_the_fixtures_do_what_they_promise(project: pytest.Pytester) -> None:
    result = run(project, PASSING)
    assert result.parseoutcomes() == {"passed": PASSING.count("def test_")}, result.stdout.str()


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


def test_a_leak_fails_the_test_and_hides_no_failure(project: pytest.Pytester) -> None:
    result = run(project, LEAKING)
    assert result.parseoutcomes() == {"failed": 3}, result.stdout.str()
    result.stdout.fnmatch_lines(["*lock 'forgotten', held by *", "*LookupError: mine*"])


def test_loading_the_plugin_imports_no_client() -> None:
    code = (
        "import sys, dibs.testing.plugin;"
        "print([m for m in sys.modules if m.startswith('dibs.testing.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['dibs.testing.plugin']"


def test_the_wall_clock_goes_with_it_however_small_the_steps_are() -> None:
    clock = ManualClock()
    began = clock.stamp()
    for _ in range(3000):
        clock.advance(1e-3 / 3)
    assert clock.stamp() - began == 1_000_000


def test_the_wall_clock_steps_alone() -> None:
    clock = ManualClock(now=5.0, stamp=7_000_000)
    clock.step_stamp(-3)
    assert (clock.now(), clock.stamp()) == (5.0, 4_000_000)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_never_goes_back(seconds: float) -> None:
    with pytest.raises(ValueError, match="forwards"):
        ManualClock().advance(seconds)


def test_calls_in_the_order_of_time_standing_at_each() -> None:
    clock = ManualClock(now=0)
    seen: list[tuple[str, float]] = []
    clock.at(3, lambda: seen.append(("third", clock.now())))
    clock.at(1, lambda: seen.append(("first", clock.now())))
    clock.at(1, lambda: seen.append(("second", clock.now())))
    clock.at(5, lambda: seen.append(("never", clock.now())))
    clock.advance(4)
    assert seen == [("first", 1), ("second", 1), ("third", 3)]
    assert clock.now() == 4
    assert clock.next_due == 5


def test_calls_what_callbacks_set_for_the_way() -> None:
    clock = ManualClock(now=0)
    seen: list[float] = []

    def beat() -> None:
        seen.append(clock.now())
        clock.at(clock.now() + 1, beat)

    clock.at(1, beat)
    clock.advance(3.5)
    assert seen == [1, 2, 3]


def test_a_cancelled_callback_is_not_called() -> None:
    clock = ManualClock(now=0)
    seen: list[str] = []
    cancel = clock.at(1, lambda: seen.append("cancelled"))
    clock.at(1, lambda: seen.append("kept"))
    cancel()
    cancel()
    clock.advance(2)
    assert seen == ["kept"]
    assert clock.next_due is None


def test_what_is_overdue_is_called_aside() -> None:
    clock = ManualClock(now=10)
    caller: list[threading.Thread] = []
    called = threading.Event()

    def note() -> None:
        caller.append(threading.current_thread())
        called.set()

    clock.at(10, note)
    assert called.wait(5)
    assert caller != [threading.current_thread()]


def test_an_error_leaves_the_clock_where_it_happened() -> None:
    clock = ManualClock(now=0)
    clock.at(1, lambda: 1 // 0)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        clock.advance(5)
    assert clock.now() == 1


def test_threads_advance_in_turns() -> None:
    clock = ManualClock(now=0)
    late: list[float] = []
    for tick in range(1, 401):
        clock.at(tick, lambda tick=tick: late.append(clock.now() - tick))  # type: ignore[misc]

    def walk() -> None:
        for _ in range(100):
            clock.advance(1)

    threads = [threading.Thread(target=walk) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now() == 400
    assert late == [0] * 400
