"""One task in one scheduler: all that its runner and its attempts have to know."""

from dataclasses import dataclass

from dibs import Campaign
from dibs.tasks.claim import Claimant, RunLock
from dibs.tasks.clock import Timekeeper
from dibs.tasks.definition import Scheduled
from dibs.tasks.report import Reporter
from dibs.tasks.status import Tally


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
