"""Which answers of a store one server may tell: the rule of freshness of `table`, by its atlas."""

from leasehold.errors import BackendUnavailable, LeaseholdError
from leasehold.model import Acquire, Command, Granted, Renew, Reply
from leasehold.server.placing.atlas import Atlas
from leasehold.server.placing.home import Home
from leasehold.server.placing.table import is_denial, may_tell

_STALE = "where directories live could not be read for a while: nothing is granted until then"

_UNSURE = (
    "where directories live can't be read, and there is nothing at the place that was known last: "
    "it may be elsewhere by now, so ask again"
)


class Telling:
    """One server's."""

    def __init__(self, atlas: Atlas) -> None:
        self._atlas = atlas

    def check(self, command: Command) -> None:
        """Nothing is asked for that could not be told. Raises `BackendUnavailable`."""
        if type(command) is Acquire and not self._atlas.is_fresh:
            raise BackendUnavailable(_STALE)

    async def be_sure(self, mark: int) -> None:
        """Read where directories live, unless that was done after `mark`. Raises `BackendUnavailable`."""
        try:
            await self._atlas.read_since(mark)
        except (LeaseholdError, TimeoutError) as error:
            raise BackendUnavailable(_UNSURE) from error

    def may(self, command: Command, reply: Reply, sent_by: Home, mark: int) -> bool:
        """Whether it may be told; False: it is to be asked anew. Raises `BackendUnavailable`.

        `mark`: the atlas' when the command left. Before a denial is told, `be_sure`.
        """
        if self.is_good(command, reply, sent_by, mark):
            return True
        if is_grant(command, reply) and not self._atlas.is_fresh:
            raise BackendUnavailable(_STALE)
        return False

    def is_good(self, command: Command, reply: Reply, sent_by: Home, mark: int) -> bool:
        """Whether it may be told as it is."""
        if not leans_on_the_table(command, reply):
            return True
        atlas = self._atlas
        return may_tell(
            reply,
            sent_by,
            atlas.table.home_of(command.key),
            is_fresh=atlas.is_fresh,
            was_read_since=atlas.was_read_since(mark),
        )


def leans_on_the_table(command: Command, reply: Reply) -> bool:
    """Whether it is true only if its key lives where the command went."""
    return is_grant(command, reply) or is_denial(reply)


def is_grant(command: Command, reply: Reply) -> bool:
    """Whether somebody learns by it that he holds what he has not held; what a Resize tells he held."""
    return type(reply) is Granted and isinstance(command, Acquire | Renew)
