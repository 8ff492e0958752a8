"""Whoever waits can always leave: an interrupt may come while it is being told how the wait goes."""

import signal
import threading
from collections.abc import Iterator

import pytest

from leasehold.cli.voice import Voice
from leasehold.cli.waiting import Speaker
from leasehold.primitives.watching import Waiting
from tests.cli.processes import LONG
from tests.runtime.interrupting import Interrupting

# Ctrl-C is for the main thread, which a parallel worker needs for itself
pytestmark = pytest.mark.serial

NEWS = Waiting(b"lock:a", (), position=0, waiting=1, waited=0.0, estimate=None)


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """A shell starts what runs in the background with SIGINT ignored: then nothing would be tried."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_at_any_bytecode_of_the_news_keeps_nobody_from_leaving() -> None:
    at, interrupting = 0, Interrupting(0)
    while at == 0 or interrupting.reached:
        at += 1
        interrupting = Interrupting(at)
        speaker = Speaker(Voice())
        speaker.__enter__()
        interrupting.run(lambda speaker=speaker: speaker.tell(NEWS))  # type: ignore[misc]
        leaving = threading.Thread(target=speaker.__exit__, args=(None, None, None), daemon=True)
        leaving.start()
        leaving.join(LONG)
        assert not leaving.is_alive(), f"stuck after an interrupt at bytecode {at}"
    assert at > 5, "far too few bytecodes: nothing was traced"
