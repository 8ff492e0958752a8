"""One task in one scheduler: all that its runner and its attempts have to know."""

from dataclasses import dataclass

from leasehold import Campaign
from leasehold.tasks.claim import Claimant, RunLock
from leasehold.tasks.clock import Timekeeper
from leasehold.tasks.definition import Scheduled
from leasehold.tasks.report import Reporter
from leasehold.tasks.status import Tally


@dataclass(frozen=True, slots=True)
class Duty:
    """A task, and the means to do it."""

    task: Scheduled
    claimant: Claimant
    lock: RunLock | None
    """What is held while it runs; None where it runs everywhere."""
    campaign: Campaign | None
    """By which it leads, if only a leader runs it."""
    time: Timekeeper
    tally: Tally
    reporter: Reporter
