"""The manual clock: stands, moves, and does on the way what was set for the way."""

import threading

import pytest

from dibs.runtime.timers import timers_for
from dibs.testing import ManualClock


def test_stands_until_it_is_advanced() -> None:
    clock = ManualClock(now=5.0, stamp=7_000_000)
    assert (clock.now(), clock.now(), clock.stamp()) == (5.0, 5.0, 7_000_000)
    clock.advance(1.5)
    assert (clock.now(), clock.stamp()) == (6.5, 8_500_000)


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


def test_hooks_run_at_every_stop() -> None:
    clock = ManualClock(now=0)
    stops: list[float] = []
    clock.on_advance.append(lambda: stops.append(clock.now()))
    clock.at(1, lambda: None)
    clock.at(2, lambda: None)
    clock.advance(3)
    assert stops == [1, 2, 3]


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


def test_the_runtime_takes_its_timers_from_the_clock() -> None:
    clock = ManualClock()
    assert timers_for(clock) is clock
