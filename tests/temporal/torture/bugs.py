"""Bugs to be planted in every worker: the torture has to find each of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.temporal.torture.plan import Mode

TOP = 1 << 52


def put(owner: Any, name: str, by: Any) -> None:
    """In the stead of what is there. A bug in what has another name by now would never be found."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner!r} has no {name}: plant the bug where that is now")
    setattr(owner, name, by)


def release_not_pinned() -> None:
    """As the guide has it: a late release ends whatever permit has the slot by then.

    It is found in holders that work longer than their lease, where no operator ends a permit:
    `python -m tests.temporal.torture --bug release-not-pinned --cycles 20 --faults 2`.
    """
    from temporalio import workflow
    from temporalio.exceptions import ApplicationError

    from dibs.temporal.slots.permit import SlotPermit

    async def end(self: Any, *how: Any) -> bool:
        permit = workflow.get_external_workflow_handle(self._workflow_id)
        try:
            await permit.signal("release")
        except ApplicationError:
            return False
        return True

    put(SlotPermit, "_end", end)


def ends_with_holder() -> None:
    """As the guide has it: a permit ends at once with its holder, whose work may not have ended."""
    from temporalio.workflow import ParentClosePolicy

    from dibs.temporal.slots import acquire as slot_acquiring

    put(slot_acquiring, "_close_policy", lambda semaphore: ParentClosePolicy.TERMINATE)


def tokens_fall() -> None:
    """In either mode."""
    from dibs.core import transition
    from dibs.temporal.slots import workflow as permit_workflow

    permits: Any = permit_workflow
    real = permits.microseconds
    put(permits, "microseconds", lambda moment: TOP - real(moment))
    put(transition, "next_token", lambda last, stamp, floor: TOP - stamp)


def forgets_when_continuing() -> None:
    """The broker's next run begins with an empty book."""
    from dibs.temporal.broker.workflow import DibsBroker

    real = DibsBroker._next_input

    def next_input(self: Any) -> Any:
        given: Any = real(self)
        given.state["book"] = None
        return given

    put(DibsBroker, "_next_input", next_input)


def last_come_first_served() -> None:
    """The queue of a broker is a stack."""
    from dibs.model import Acquire
    from dibs.temporal.broker.book import BrokerBook

    real = BrokerBook.apply

    def apply(self: Any, command: Any, now: float, stamp: int) -> Any:
        if isinstance(command, Acquire):
            command = replace(command, priority=int(now) % 1_000_000)
        return real(self, command, now, stamp)

    put(BrokerBook, "apply", apply)


def the_dead_are_waited_for() -> None:
    """What was granted to a plain program that died in the queue stands for ten minutes."""
    from dibs.core import transition

    put(transition, "claim_timeout", lambda ttl: 600.0)


def brokers_stay() -> None:
    """Brokers never end."""
    from dibs.temporal.broker.workflow import DibsBroker

    put(DibsBroker, "_is_over", lambda self: False)


@dataclass(frozen=True, slots=True)
class Bug:
    """What breaks a process, and the trial that finds it soon."""

    plant: Callable[[], None]
    mode: Mode
    kinds: tuple[str, ...] = ()
    """The faults that bring it to light; any, unless given."""
    shapes: tuple[str, ...] = ()
    """The shapes of holders that bring it to light; all, unless given."""


BUGS = {
    "release-not-pinned": Bug(release_not_pinned, "slot", ("worker killed",), ("overruns",)),
    "ends-with-holder": Bug(ends_with_holder, "slot", ("holder terminated",)),
    "tokens-fall": Bug(tokens_fall, "slot"),
    "tokens-fall-at-brokers": Bug(tokens_fall, "fair"),
    "last-come-first-served": Bug(last_come_first_served, "fair"),
    "forgets-when-continuing": Bug(forgets_when_continuing, "fair"),
    "the-dead-are-waited-for": Bug(the_dead_are_waited_for, "fair", ("program killed",)),
    "brokers-stay": Bug(brokers_stay, "fair"),
}


def plant(name: str) -> None:
    """Break this process."""
    if name:
        BUGS[name].plant()
