"""A batch on its way without a task of its own: its landing is called as soon as the answer is read.

An event loop takes two turns less for it than for a coroutine that is awaited, and while the server works
at one batch, the tasks that the last one woke go on.
"""

from collections.abc import Callable, Sequence

from dibs.backends.port import Land
from dibs.backends.postgres import applying
from dibs.backends.postgres.loop_wire import LoopWire
from dibs.backends.postgres.site import Site
from dibs.backends.postgres.trouble import SqlError, Unfit, cut_off
from dibs.backends.postgres.wire import Answer, rows_of
from dibs.errors import BackendUnavailable
from dibs.model import Command


def launch(
    site: Site,
    wire: LoopWire,
    commands: Sequence[Command],
    inbox: str,
    land: Land,
    note: Callable[[applying.Told], None],
) -> Callable[[], None] | None:
    """Send a batch now, or when its turn comes; what gives it up. None: it must go by `apply`.

    `note` is told what the batch brought.
    """
    try:
        call = applying.call_for(site, commands, inbox)
    except (Unfit, UnicodeError):
        return None

    def landed(found: Answer | Exception) -> None:
        if isinstance(found, (SqlError, UnicodeError)):
            return land(None)
        if isinstance(found, Exception):
            return land(cut_off(found, site.place))
        try:
            told = call.read(rows_of(found))
        except SqlError:
            return land(None)  # nothing was done, and the ordinary way knows what that error means
        except Exception as error:  # noqa: BLE001  # else the callers would wait for their time-out
            return land(BackendUnavailable(f"{site.place} answered what can't be read: {error!r}"))
        note(told)
        land(told[0])

    wire.start(lambda: wire.send(call.statement, call.values), landed)
    return wire.cut
