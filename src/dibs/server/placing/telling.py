"""Which answers of a store one server may tell: the rule of freshness of `table`, by its atlas."""

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Acquire, Command, Granted, Renew, Renewed, Reply
from dibs.runtime.port import Answer, Told
from dibs.server.placing.atlas import Atlas
from dibs.server.placing.home import Home
from dibs.server.placing.plans import LATE
from dibs.server.placing.table import is_denial, may_tell
from dibs.server.placing.untold import Untold

_STALE = (
    "the service can't read its records, which say where locks live: nothing is granted until it can. "
    "Ask again; for who runs it: does the store with its records answer?"
)

_UNSURE = (
    "the service can't read its records, which say where locks live, and there is nothing at the place "
    "that was known last: it may be elsewhere by now. Ask again; for who runs it: does the store with "
    "its records answer?"
)


class Telling:
    """One server's."""

    def __init__(self, atlas: Atlas) -> None:
        self._atlas = atlas
        self.untold = Untold()

    def check(self, command: Command) -> None:
        """Nothing is asked for that could not be told. Raises `BackendUnavailable`."""
        if type(command) is Acquire and not self._atlas.is_fresh:
            raise BackendUnavailable(_STALE)

    async def be_sure(self, mark: int) -> None:
        """Read where directories live, unless that was done after `mark`. Raises `BackendUnavailable`."""
        try:
            await self._atlas.read_since(mark)
        except (DibsError, TimeoutError) as error:
            raise BackendUnavailable(_UNSURE) from error

    def may(self, command: Command, reply: Reply, sent_by: Home, mark: int) -> bool:
        """Whether it may be told; False: it is to be asked anew. Raises `BackendUnavailable`.

        `mark`: the atlas' when the command left. Before a denial is told, `be_sure`.
        """
        if self.is_good(command, reply, sent_by, mark):
            return True
        if not is_denial(reply) and not self._atlas.is_fresh:
            raise BackendUnavailable(_STALE)
        return False

    def is_good(self, command: Command, reply: Reply, sent_by: Home, mark: int) -> bool:
        """Whether it may be told as it is. A grant that may not is remembered, until it was told."""
        is_untold = self.untold.has(command)
        if not is_untold and not leans_on_the_table(command, reply):
            return True
        atlas = self._atlas
        is_good = may_tell(
            reply,
            sent_by,
            atlas.table.home_of(command.key),
            is_fresh=atlas.is_fresh,
            was_read_since=atlas.was_read_since(mark),
            is_untold=is_untold,
        )
        self._remember(command, reply, is_told=is_good)
        return is_good

    def is_good_alone(self, command: Command, reply: Reply) -> bool:
        """The same, of what was asked of the one store that there was when the command left."""
        is_lone = self._atlas.is_lone()
        if not is_lone and not self.untold.has(command) and not leans_on_the_table(command, reply):
            return True
        self._remember(command, reply, is_told=is_lone)
        return is_lone

    def sent(self, command: Command, told: Told | None = None) -> None:
        """What came of it, if anything: of an Acquire a copy, or what it was granted, may be on its way."""
        if type(command) is Acquire:
            is_unsure = type(told) is not Answer or told.resent
        else:
            is_unsure = type(told) is Answer and told.reply is LATE
        if is_unsure:
            self.untold.add(command)

    def _remember(self, command: Command, reply: Reply, *, is_told: bool) -> None:
        """Of whom nobody was told that he holds."""
        if type(reply) is Granted or type(reply) is Renewed:
            (self.untold.settle if is_told else self.untold.add)(command)


def leans_on_the_table(command: Command, reply: Reply) -> bool:
    """Whether it is true only if its key lives where the command went."""
    return is_grant(command, reply) or is_denial(reply)


def is_grant(command: Command, reply: Reply) -> bool:
    """Whether somebody learns by it that he holds what he has not held; what a Resize tells he held."""
    return type(reply) is Granted and isinstance(command, Acquire | Renew)
