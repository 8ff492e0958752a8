"""One task in one scheduler: all that its runner and its attempts have to know."""

from typing import NamedTuple

from leasehold import Campaign
from leasehold.tasks.claim import Claimant
from leasehold.tasks.clock import Timekeeper
from leasehold.tasks.definition import Scheduled
from leasehold.tasks.report import Reporter
from leasehold.tasks.status import Tally


class Duty(NamedTuple):
    """A task, and the means to do it."""

    task: Scheduled
    claimant: Claimant
    campaign: Campaign | None
    """By which it leads, if only a leader runs it."""
    time: Timekeeper
    tally: Tally
    reporter: Reporter
