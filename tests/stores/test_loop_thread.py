"""Ctrl-C at any bytecode of a thread's way to the loop that works for it: the loop stays well."""

import asyncio
import signal
import warnings
from collections.abc import Callable, Iterator

import pytest

from dibs.stores.loop_thread import LoopThread
from tests.runtime.interrupting import Interrupting

pytestmark = [
    pytest.mark.serial,  # Ctrl-C is for the main thread, which a parallel worker needs for itself
    pytest.mark.once,
    # an interrupt may come between making a coroutine, a loop or a thread and using it
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

LONG = 30.0
"""Seconds within which everything that is to happen at once has happened, on a busy machine too."""


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """A shell starts what runs in the background with SIGINT ignored: then nothing would be tried."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def new_thread() -> LoopThread[None]:
    return LoopThread("dibs-test", "test://", lambda: None, lambda: None)


def at_bytecodes(stride: int, action: Callable[[], object], then: Callable[[], None]) -> int:
    """Interrupt it at each such bytecode until it ends before; `then` follows each."""
    at, interrupting = 0, Interrupting(0)
    while at == 0 or interrupting.reached:
        at += stride
        interrupting = Interrupting(at)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            interrupting.run(action)
        then()
    return at


async def short_work(text: str = "") -> str:
    await asyncio.sleep(0.001)
    return text


STRIDES = pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.long)])


@STRIDES
def test_an_interrupt_of_whoever_waits_leaves_the_loop_to_the_others(stride: int) -> None:
    thread = new_thread()
    thread.enter("me")

    def others_go_on() -> None:
        assert thread.do(short_work("done"), LONG) == "done"

    assert at_bytecodes(stride, lambda: thread.do(short_work()), others_go_on) > 50
    thread.leave("me")


@STRIDES
def test_an_interrupt_of_who_comes_and_goes_keeps_nobody_out(stride: int) -> None:
    thread = new_thread()

    def come_and_go() -> None:
        thread.enter("me")
        thread.leave("me")

    def another() -> None:
        thread.enter("another")
        assert thread.do(short_work("done"), LONG) == "done"
        thread.leave("another")
        thread.leave("me")  # as it does again in its `finally`

    assert at_bytecodes(stride, come_and_go, another) > 50
