"""The scheduler: each tick of a task runs in one of the processes that declare it.

`Tasks` runs tasks in an event loop, `TaskRouter` collects them. Cron expressions need
`dibs[tasks]`.
"""

from dibs.tasks.definition import ScheduleOptions as ScheduleOptions
from dibs.tasks.manager import Tasks as Tasks
from dibs.tasks.router import TaskRouter as TaskRouter
from dibs.tasks.status import TaskFailure as TaskFailure
from dibs.tasks.status import TaskStatus as TaskStatus

__all__ = [
    "ScheduleOptions",
    "TaskFailure",
    "TaskRouter",
    "TaskStatus",
    "Tasks",
]
