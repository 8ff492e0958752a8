"""How a batch becomes one call of the script, and its answer a batch of replies."""

from collections.abc import Sequence

from dibs.clock import Clock
from dibs.model import Command, Reply, Wakeup
from dibs.stores.redis import script
from dibs.stores.redis.link import Link, ReplyError, pack
from dibs.stores.redis.script import Call
from dibs.stores.redis.script_commands import packed
from dibs.stores.redis.script_keys import store_key
from dibs.stores.redis.trouble import code_of

type Outcome = tuple[list[Reply], list[Wakeup]]
"""A reply for each command, and what is to be told to our own inbox."""

_SHA = script.SHA.encode()

_LONE = b"*6\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n1\r\n" % _SHA


def _bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


class Terms:
    """What every call of one backend says besides its commands."""

    __slots__ = ("_inbox", "_usual", "clock", "holdoff", "inbox_bulk")

    def __init__(self, clock: Clock | None, holdoff: float) -> None:
        self.clock = clock
        """Stands in for the server's, in tests."""
        self.holdoff = holdoff
        self._usual = clock is None and not holdoff
        self.inbox = ""

    @property
    def inbox(self) -> str:
        """Where pushes for us go."""
        return self._inbox

    @inbox.setter
    def inbox(self, inbox: str) -> None:
        self._inbox = inbox
        self.inbox_bulk = _bulk(inbox.encode())

    def request(self, commands: Sequence[Command]) -> bytes:
        """What applies a batch, if the server has the script. A lone command's is put together by hand."""
        if len(commands) > 1 or not self._usual:
            return by_name(self.call(commands))
        (command,) = commands
        wish = packed(command)
        parts = (_LONE, _bulk(store_key(command.key)), self.inbox_bulk, _bulk(wish))
        return b"".join(parts)

    def call(self, commands: Sequence[Command]) -> Call:
        """The call that applies a batch."""
        clock = self.clock
        if clock is None:
            return script.call_for(commands, inbox=self.inbox, holdoff=self.holdoff)
        now, stamp = clock.now(), clock.stamp()
        return script.call_for(
            commands, inbox=self.inbox, now=now, stamp=stamp, holdoff=self.holdoff
        )


def by_name(call: Call) -> bytes:
    """A call of the script that the server has, it is hoped."""
    return pack((b"EVALSHA", _SHA, len(call.keys), *call.keys, *call.args))


def in_full(call: Call) -> bytes:
    """The same for a server that has lost or never seen it; from then on it has it."""
    return pack((b"EVAL", script.SOURCE, len(call.keys), *call.keys, *call.args))


def is_missing(answer: object) -> bool:
    """The server does not have the script: nothing was done."""
    return isinstance(answer, ReplyError) and code_of(answer) == "NOSCRIPT"


async def evaluate(link: Link, terms: Terms, commands: Sequence[Command]) -> object:
    """Call the script once. Raises `OSError` and `HiredisError` as the link does."""
    answer = (await link.ask(terms.request(commands)))[0]
    if is_missing(answer):
        answer = (await link.ask(in_full(terms.call(commands))))[0]
    return answer
