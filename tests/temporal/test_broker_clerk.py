"""What comes of a call, without a server."""

from typing import Any

from dibs.backends.temporal.broker.clerk import Clerk
from dibs.backends.temporal.broker.clock import BrokerClock
from dibs.backends.temporal.broker.desk import Desk
from dibs.backends.temporal.broker.telling import Telling
from dibs.backends.temporal.protocol.owners import inbox_of
from dibs.backends.temporal.protocol.wire import Call, pack_command
from dibs.model import Acquire

KEY = b"lock:a"
RUN = "01a201dc-139d-7c25-967c-4abd85365a06"


class Office:
    """A clerk, and what he works with, at a time that stands still."""

    def __init__(self) -> None:
        self.desk = Desk(KEY)
        clock = BrokerClock(0.0, (1_000.0, 10**15))
        self.telling = Telling("", self.desk, clock, lambda: None, None)
        self.clerk = Clerk(self.desk, clock, self.telling, by_hand=True)

    def ask(self, workflow_id: str, run_id: str, **more: Any) -> list[Any]:
        command = pack_command(Acquire(KEY, "a", "me", 30.0))
        call = Call([command], 1, workflow_id, run_id, at=(1_000.0, 10**15), **more)
        inbox = inbox_of(workflow_id, run_id) if workflow_id else ""
        return self.clerk.answer(call, inbox, []).replies


def test_what_a_workflow_holds_may_end_with_its_run() -> None:
    office = Office()
    (reply,) = office.ask("me", RUN, fast=True)
    assert reply["is"] == "Granted"
    assert office.desk.fast_owners() == [("me", RUN)]


def test_fast_without_an_owner_is_nobody_to_be_looked_after() -> None:
    """A plain client's, and one whose run can't be one."""
    for workflow_id, run_id in (("", ""), ("me", "no-run")):
        office = Office()
        (reply,) = office.ask(workflow_id, run_id, fast=True)
        assert reply["is"] == "Granted"
        assert office.desk.fast_owners() == []
        assert office.telling.post.empty
