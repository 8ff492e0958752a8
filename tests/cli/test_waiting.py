"""Messages while a command waits: an interrupt at any moment of them, and outages."""

import json
import threading
from urllib.parse import urlsplit

import pytest

from dibs.cli.output import Messages
from dibs.cli.waiting import WaitProgress
from dibs.locks.waiting import Waiting
from dibs.sync import connect
from dibs.testing import FaultProxy
from tests.cli.processes import LONG, Cli, end
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


def test_an_outage_and_its_end_are_reported(cli: Cli, redis_url: str) -> None:
    address = urlsplit(redis_url)
    with (
        FaultProxy(address.hostname or "", address.port or 0) as way,
        connect(redis_url) as client,
        client.lock("a") as lease,
    ):
        environment = cli.environment | {
            "DIBS_URL": way.url_for(redis_url),
            "DIBS_CALL_TIMEOUT": "500ms",
        }
        watch = cli.start("watch", "a", "--json", "--every", "0.2", env=environment)
        waiter = cli.start("run", "a", "--json", "--", "echo", "mine", env=environment)
        assert watch.stdout is not None
        assert watch.stderr is not None
        assert waiter.stderr is not None
        assert json.loads(watch.stdout.readline())["held"]
        assert json.loads(waiter.stderr.readline())["event"] == "waiting"
        way.refuse()
        way.cut()
        for stderr in (watch.stderr, waiter.stderr):
            assert "still trying" in json.loads(stderr.readline())["message"]
        way.heal()
        assert json.loads(watch.stderr.readline())["event"] == "back"
        assert json.loads(waiter.stderr.readline())["event"] == "waiting"
        lease.release()
        assert end(waiter)[:2] == (0, "mine\n")
