"""The scheduler: what is due runs in one process of all that have it, and nowhere twice.

`Tasks` runs tasks in an event loop, `TaskRouter` collects them. Cron expressions need
`leasehold[tasks]`.
"""

from leasehold.tasks.clock import Clock as Clock
from leasehold.tasks.clock import SteppedClock as SteppedClock
from leasehold.tasks.manager import Tasks as Tasks
from leasehold.tasks.options import ScheduleOptions as ScheduleOptions
from leasehold.tasks.report import TaskFailure as TaskFailure
from leasehold.tasks.router import TaskRouter as TaskRouter
from leasehold.tasks.status import TaskStatus as TaskStatus

__all__ = [
    "Clock",
    "ScheduleOptions",
    "SteppedClock",
    "TaskFailure",
    "TaskRouter",
    "TaskStatus",
    "Tasks",
]
