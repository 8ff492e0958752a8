"""Which answers of a store one server may tell: the rule of freshness of `table`, by its atlas."""

from leasehold.errors import BackendUnavailable
from leasehold.model import Acquire, Command, Granted, Renew, Reply
from leasehold.server.placing.atlas import Atlas
from leasehold.server.placing.home import Home
from leasehold.server.placing.table import may_tell

_STALE = "where directories live could not be read for a while: nothing is granted until then"


class Telling:
    """One server's."""

    def __init__(self, atlas: Atlas) -> None:
        self._atlas = atlas

    def check(self, command: Command) -> None:
        """Nothing is asked for that could not be told. Raises `BackendUnavailable`."""
        if type(command) is Acquire and not self._atlas.is_fresh:
            raise BackendUnavailable(_STALE)

    def may(self, command: Command, reply: Reply, sent_by: Home) -> bool:
        """Whether it may be told; False: it is to be asked anew. Raises `BackendUnavailable`."""
        if self.is_good(command, reply, sent_by):
            return True
        if not self._atlas.is_fresh:
            raise BackendUnavailable(_STALE)
        return False

    def is_good(self, command: Command, reply: Reply, sent_by: Home) -> bool:
        """Whether it may be told as it is."""
        if not is_grant(command, reply):
            return True
        home = self._atlas.table.home_of(command.key)
        return may_tell(reply, sent_by, home, is_fresh=self._atlas.is_fresh)


def is_grant(command: Command, reply: Reply) -> bool:
    """Whether somebody learns by it that he holds what he has not held; what a Resize tells he held."""
    return type(reply) is Granted and isinstance(command, Acquire | Renew)
