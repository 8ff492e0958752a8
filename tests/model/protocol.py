"""What a client believes, in a world of whole ticks: DESIGN §2 and §3 in a few lines.

A mutant client is a subclass with one of these wrong.
"""

from tests.model.world import FOREVER, LONG_AGO, Client, Trip

EVERY = 3
"""A skewed clock slips by a tick once in so many of the store's, or in more."""
MARGIN = 1
"""One tick: as much as a skewed clock slips within a ttl."""


class Protocol:
    """The arithmetic of an honest client."""

    margin = MARGIN

    def left(self, ttl: float, sent: int) -> int:
        """Ticks until the deadline after an answer: counted from the *first* sending of the call."""
        return int(ttl) - self.margin - sent

    def left_of_push(self, window: float, trip: Trip | None, granted: int) -> int | None:
        """Ticks until the deadline of a pushed grant, or None where the figure is in doubt.

        The last round trip was sent at `s` and answered at store time `n`, and the grant's store time
        minus `n` has passed since, at least: the deadline is s + (granted_at - n) + window - margin.
        The margin allows for a clock that slips within the window; this clock may also have slipped
        while it waited for the grant.

        Where the store has no clock, the grant came after `s`: an answer said that the id waited.
        """
        if trip is None:
            return None
        own_since_sent, since_answered = trip
        if since_answered is None:
            return int(window) - self.margin - own_since_sent
        if granted >= LONG_AGO:
            return None
        waited = since_answered - granted
        return waited - self.slip(waited) + int(window) - self.margin - own_since_sent

    def slip(self, waited: int) -> int:
        """By how much this clock may be late after `waited` of the store's ticks."""
        return -(-waited // EVERY)

    def doubted(self, client: Client) -> Client:
        """A waiter without the store's clock, once an answer was lost or late, or it was silent.

        A grant may have been claimed and have ended unseen, so that a push may be of that one.
        """
        return client._replace(doubtful=True, trip=None)

    def was_silent(self, client: Client, tombstone: int) -> bool:
        """Whether a tombstone of a waiter's id may be gone, and the id wait anew, once it speaks now."""
        since_sent = LONG_AGO if client.trip is None else client.trip[0]
        return since_sent > tombstone / 2

    def set_tombstone(self, client: Client) -> int:
        """A copy of the Acquire may still be on its way if one was never answered, or sent twice."""
        return FOREVER if client.asked > 1 or not client.answered else 0

    def gone(self, client: Client) -> Client:
        """What it believes once it has sent its Release: nothing, and no late answer revives it."""
        return Client(born=client.born)

    def shrunk(self, client: Client) -> Client:
        """What it believes once it has sent a Resize to one unit: it counts on the others no more."""
        return client._replace(units=1, slots=client.slots[:1])
