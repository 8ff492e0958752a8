"""When a broker's run ends for the next, without a server."""

import pytest
from temporalio import workflow

from dibs.backends.temporal.broker import workflow as broker_leaving
from dibs.backends.temporal.broker.backlog import Backlog
from dibs.backends.temporal.broker.parts import size_of
from dibs.backends.temporal.broker.workflow import Leaving
from dibs.backends.temporal.protocol.owners import inbox_of
from dibs.model import Acquire
from tests.temporal.test_broker_clerk import KEY, RUN, Office


class Run:
    """One that has grown old, at a time that is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(broker_leaving, "outgrown", lambda *_: True)
        monkeypatch.setattr(workflow, "time", lambda: self.now)
        office = Office()
        self.desk = office.desk
        self.post = office.telling.post
        backlog = Backlog(lambda _: None, lambda: None, ())
        self.leaving = Leaving(office.desk, self.post, backlog)


def test_what_is_known_of_workflows_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch)
    for number in range(200):
        workflow_id = f"import/customer-{number}"
        entry = Acquire(KEY, f"{number:024d}", "me", 60.0, queue=True, patience=60.0)
        run.desk.apply(entry, 1.0, 1)
        run.desk.mark_fast(entry, (workflow_id, RUN))
    carried = size_of(run.desk.dump())
    monkeypatch.setattr(broker_leaving, "MESSAGE", carried - 100)
    assert run.desk.room.measured() < carried - 100
    assert not run.leaving.is_due(0, 0, 0)
    monkeypatch.setattr(broker_leaving, "MESSAGE", carried + 1_000)
    assert run.leaving.is_due(0, 0, 0)


def test_who_is_to_be_told_something_does_not_wait_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long calls overlap, so that the run can't end."""
    run = Run(monkeypatch)
    assert run.leaving.pauses(True)
    assert run.leaving.due() is None
    run.post.to(inbox_of("w", RUN)).granted.append("a")
    assert run.leaving.pauses(True)
    assert run.leaving.due() == 100.0 + Leaving.LONGEST
    run.now += Leaving.LONGEST
    assert not run.leaving.pauses(True)
    assert run.leaving.pauses(True)  # once more it tries to rest
    assert not run.leaving.pauses(False)
    assert run.leaving.due() is None
