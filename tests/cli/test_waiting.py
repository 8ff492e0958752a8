"""Messages while a command waits: outages, and interrupts at any moment of them."""

import json
import select
import threading
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from dibs.cli import waiting
from dibs.cli.output import Messages
from dibs.cli.waiting import WaitProgress
from dibs.errors import BackendUnavailable, DibsError, Forbidden
from dibs.locks.waiting import Waiting
from dibs.sync import connect
from dibs.testing import FaultProxy
from tests.cli.processes import LONG, Cli
from tests.runtime.interrupting import Interrupting

NEWS = Waiting(b"lock:a", (), position=0, waiting=1, waited=0.0, estimate=None)


@pytest.mark.serial  # Ctrl-C is for the main thread, which a parallel worker needs for itself
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


class Recorded(Messages):
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


def test_an_outage_is_reported_once_when_it_begins(store: Store) -> None:
    shown = Recorded()
    with WaitProgress(shown, store.ask) as reporter:
        assert shown.events.get(timeout=LONG) == AWAY
        store.wait_for_questions(5)
        reporter.tell(NEWS)
        assert shown.events.get(timeout=LONG) == FREE, "and the outage just once before"
        assert shown.events.get(timeout=LONG) == AWAY
    with pytest.raises(Empty):
        shown.events.get_nowait()


@pytest.mark.parametrize("trouble", [None, Forbidden("not you")])
def test_a_silence_that_is_no_outage_is_not_reported(
    store: Store, trouble: DibsError | None
) -> None:
    shown, store.trouble = Recorded(), trouble
    with WaitProgress(shown, store.ask) as reporter:
        store.wait_for_questions(5)
        reporter.tell(NEWS)
        assert shown.events.get(timeout=LONG) == FREE


@pytest.mark.parametrize("verb", [("events",), ("watch", "a")], ids=lambda verb: verb[0])
def test_an_outage_of_a_stream_and_its_end_are_reported(
    cli: Cli, redis_url: str, verb: tuple[str, ...]
) -> None:
    address = urlsplit(redis_url)
    with FaultProxy(address.hostname or "", address.port or 0) as way:
        url = {"DIBS_URL": way.url_for(redis_url), "DIBS_CALL_TIMEOUT": "500ms"}
        tail = cli.start(*verb, "--json", "--every", "0.2", env=cli.environment | url)
        assert tail.stdout is not None
        assert tail.stderr is not None
        with connect(redis_url) as client:
            is_shown = False
            while not is_shown:  # until it has looked
                with client.lock(f"a/{uuid4()}").acquire():
                    is_shown = bool(select.select([tail.stdout], [], [], 0.5)[0])
        way.refuse()
        way.cut()
        assert "still trying" in json.loads(tail.stderr.readline())["message"]
        way.heal()
        assert json.loads(tail.stderr.readline())["event"] == "back"
