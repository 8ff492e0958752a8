"""Bugs of task locks: how long a lock stays closed, and for whom."""

from dibs.locks.lease import LeaseBase
from dibs.locks.tasklock import TaskLeaseBase
from dibs.model import Release
from tests.torture.bugs.bug import Bug, patched

WHERE = ("tasklock",)

_leave = TaskLeaseBase._leave
CLOSED = "tasklock.TaskLeaseBase._closed_until"


async def a_failure_needs_no_pause(self: TaskLeaseBase, exc: BaseException | None) -> None:
    if exc is not None:
        self._started -= 1e6
    await _leave(self, exc)


def as_any_lease(self: TaskLeaseBase) -> Release:
    return LeaseBase._farewell(self)


@property  # type: ignore[misc]
def from_the_end(self: TaskLeaseBase) -> float:
    return self._rt.now() + self._terms.more.min_hold  # type: ignore[no-any-return]


@property  # type: ignore[misc]
def from_the_question(self: TaskLeaseBase) -> float:
    return self._asked_at + self._terms.more.min_hold  # type: ignore[no-any-return]


BUGS = {
    "a failed task is released at once": Bug(
        frozenset({"early"}),
        WHERE,
        patches=patched("tasklock.TaskLeaseBase._leave", a_failure_needs_no_pause),
    ),
    "a task lock is not kept": Bug(
        frozenset({"early"}),
        WHERE,
        patches=patched("tasklock.TaskLeaseBase._farewell", as_any_lease),
    ),
    "kept from the end": Bug(frozenset({"kept"}), WHERE, patches=patched(CLOSED, from_the_end)),
    "kept from the question": Bug(
        frozenset({"early"}), WHERE, patches=patched(CLOSED, from_the_question)
    ),
}
