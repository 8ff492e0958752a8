"""Whoever waits can always leave: an interrupt may come while it is being told how the wait goes."""

import signal
import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from dibs.cli import waiting
from dibs.cli.output import Messages
from dibs.cli.waiting import WaitProgress
from dibs.errors import BackendUnavailable, DibsError, Forbidden
from dibs.locks.waiting import Waiting
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
        reporter = WaitProgress(Messages())
        reporter.__enter__()
        interrupting.run(lambda reporter=reporter: reporter.tell(NEWS))  # type: ignore[misc]
        leaving = threading.Thread(target=reporter.__exit__, args=(None, None, None), daemon=True)
        leaving.start()
        leaving.join(LONG)
        assert not leaving.is_alive(), f"stuck after an interrupt at bytecode {at}"
    assert at > 5, "far too few bytecodes: nothing was traced"


class Heard(Messages):
    """Remembers what is said."""

    def __init__(self) -> None:
        super().__init__(as_json=True)
        self.events: SimpleQueue[str] = SimpleQueue()

    def show(self, event: str, text: str, **fields: Any) -> None:
        self.events.put(f"{event}: {text}")


class Store:
    """What is asked whether it is there."""

    def __init__(self) -> None:
        self.trouble: DibsError | None = BackendUnavailable("nobody listens there")
        self._asked: SimpleQueue[None] = SimpleQueue()

    def ask(self) -> None:
        self._asked.put(None)
        if self.trouble is not None:
            raise self.trouble

    def wait_for_questions(self, count: int) -> None:
        """Until it was asked so often, from now on."""
        while not self._asked.empty():
            self._asked.get()
        for _ in range(count):
            self._asked.get(timeout=LONG)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(waiting, "_SILENT", 0.005)
    return Store()


AWAY = "unavailable: still trying: nobody listens there"
FREE = "waiting: waiting for a: free; you are next"


def test_an_outage_is_told_when_it_begins_and_when_it_is_over(store: Store) -> None:
    heard = Heard()
    with WaitProgress(heard, store.ask) as reporter:
        assert heard.events.get(timeout=LONG) == AWAY
        store.wait_for_questions(5)
        reporter.tell(NEWS)
        assert heard.events.get(timeout=LONG) == FREE, "and the outage just once before"
        assert heard.events.get(timeout=LONG) == AWAY
    with pytest.raises(Empty):
        heard.events.get_nowait()


def test_an_outage_that_goes_on_is_told_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_PLAIN", 0.0)
    heard = Heard()
    with WaitProgress(heard, store.ask):
        assert {heard.events.get(timeout=LONG) for _ in range(3)} == {AWAY}


@pytest.mark.parametrize("trouble", [None, Forbidden("not you")])
def test_a_silence_that_is_no_outage_is_no_news(store: Store, trouble: DibsError | None) -> None:
    heard, store.trouble = Heard(), trouble
    with WaitProgress(heard, store.ask) as reporter:
        store.wait_for_questions(5)
        reporter.tell(NEWS)
        assert heard.events.get(timeout=LONG) == FREE


def test_what_was_said_already_is_not_said_again(store: Store) -> None:
    heard = Heard()
    with WaitProgress(heard, store.ask, is_away=True) as reporter:
        store.wait_for_questions(5)
        reporter.tell(NEWS)
        assert heard.events.get(timeout=LONG) == FREE
