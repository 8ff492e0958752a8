"""Bugs of task locks: how long a lock stays closed, and for whom."""

from dataclasses import replace

from dibs.locks.lease import LeaseBase
from dibs.locks.tasklock import TaskLeaseBase
from dibs.model import Release
from tests.torture.bugs.bug import Bug, patched

WHERE = ("tasklock",)

_leave = TaskLeaseBase._leave
_release_command = LeaseBase._release_command
COMMAND = "tasklock.TaskLeaseBase._release_command"


async def a_failure_needs_no_pause(self: TaskLeaseBase, exc: BaseException | None) -> None:
    if exc is not None:
        self._retain_until = self._rt.now()
    await _leave(self, exc)


def as_any_lease(self: TaskLeaseBase) -> Release:
    return replace(_release_command(self), retain=0.0)


def from_the_end(self: TaskLeaseBase) -> Release:
    return replace(_release_command(self), retain=self._rules.retain)


def from_the_question(self: TaskLeaseBase) -> Release:
    keep = max(self._asked_at + self._rules.retain - self._rt.now(), 0.0)
    return replace(_release_command(self), retain=keep)


BUGS = {
    "a failed task is released at once": Bug(
        frozenset({"early"}),
        WHERE,
        patches=patched("tasklock.TaskLeaseBase._leave", a_failure_needs_no_pause),
    ),
    "a task lock is not kept": Bug(
        frozenset({"early"}),
        WHERE,
        patches=patched(COMMAND, as_any_lease),
    ),
    "kept from the end": Bug(frozenset({"kept"}), WHERE, patches=patched(COMMAND, from_the_end)),
    "kept from the question": Bug(
        frozenset({"early"}), WHERE, patches=patched(COMMAND, from_the_question)
    ),
}
