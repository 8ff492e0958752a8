"""Holders and waiters as an answer tells them: their notes end where the service's own part begins."""

from collections.abc import Iterable

from dibs.backends.http import wire
from dibs.backends.http.translation import holders_to_wire, status_to_wire
from dibs.core.notes import plain_holders, plain_status
from dibs.model import Holder, Status


def holders_for_people(holders: Iterable[Holder]) -> tuple[wire.Holder, ...]:
    """Holders, as an answer tells them."""
    return holders_to_wire(plain_holders(holders))


def status_for_people(status: Status) -> wire.Status:
    """Who holds and waits, as an answer tells it."""
    return status_to_wire(plain_status(status))
