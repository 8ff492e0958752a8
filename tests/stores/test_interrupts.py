"""Ctrl-C at any bytecode of a thread in a store: nobody else is locked out."""

import asyncio
import gc
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from dibs.stores.loop_thread import LoopThread
from tests.runtime.interrupting import Interrupting
from tests.stores.sqlite_help import Opened, acquire

pytestmark = [
    pytest.mark.serial,  # Ctrl-C is for the main thread, which a parallel worker needs for itself
    pytest.mark.once,
    pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.long)]),
    # an interrupt may come between making a coroutine, a loop or a thread and using it
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """What an interrupt has left open must not be found during another test."""
    yield
    gc.collect()


LONG = 30.0
"""Seconds within which everything that is to happen at once has happened, on a busy machine too."""


def at_bytecodes(stride: int, action: Callable[[], object], then: Callable[[], None]) -> None:
    """Interrupt it at each such bytecode until it ends before; `then` follows each."""
    at, interrupting = 0, Interrupting(0)
    while at == 0 or interrupting.reached:
        at += stride
        interrupting = Interrupting(at)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            interrupting.run(action)
        then()
    assert at > 50


async def short_work(text: str = "") -> str:
    await asyncio.sleep(0.001)
    return text


def test_whoever_waits_for_the_loop_of_a_thread_leaves_it_to_the_others(stride: int) -> None:
    thread = LoopThread("dibs-test", "test://")
    thread.enter("me")

    def others_go_on() -> None:
        assert thread.do(short_work("done"), LONG) == "done"

    at_bytecodes(stride, lambda: thread.do(short_work()), others_go_on)
    thread.leave("me")


def test_who_comes_to_the_loop_of_a_thread_and_goes_keeps_nobody_out(stride: int) -> None:
    thread = LoopThread("dibs-test", "test://")

    def come_and_go() -> None:
        thread.enter("me")
        thread.leave("me")

    def another() -> None:
        thread.enter("another")
        assert thread.do(short_work("done"), LONG) == "done"
        thread.leave("another")
        thread.leave("me")  # as it does again in its `finally`

    at_bytecodes(stride, come_and_go, another)


def test_a_connection_to_a_file_can_be_closed(stride: int, tmp_path: Path) -> None:
    path, numbers = tmp_path / "leases.db", count()
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    keep, user = Opened(path), Opened(path)

    def close_it() -> None:
        nonlocal user
        user.close()
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        user = Opened(path)

    at_bytecodes(stride, lambda: user.say(acquire(b"lock:%d" % next(numbers), "a")), close_it)
    for each in (user, other, keep):
        each.close()
