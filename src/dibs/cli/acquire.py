"""`dibs acquire`: a lease that outlives the command and ends after its ttl."""

import getpass
from collections.abc import Callable
from functools import partial
from socket import gethostname
from typing import TYPE_CHECKING, Any

import click

from dibs.cli import options
from dibs.cli.by_id import Acquirable, id_of, ttl_of, unattended, wait_of
from dibs.cli.exits import NOT_ACQUIRED
from dibs.cli.naming import base64_name, bytes_of
from dibs.cli.signals import Interrupted, Signals
from dibs.cli.streams import needs_stdout
from dibs.cli.voice import Voice
from dibs.cli.waiting import Speaker
from dibs.cli.wording import shown, span
from dibs.errors import BackendUnavailable
from dibs.runtime.port import step

if TYPE_CHECKING:
    from dibs.locks.by_id import ManualLease, ManualLeases
    from dibs.sync import Waiting

_FEWEST = 22
"""Characters of a lease id with 128 random bits."""


@click.command(
    epilog=options.examples(
        "dibs acquire db/migrate --ttl 5m",
        "dibs renew db/migrate --ttl 5m -L LOCK-ID",
        "dibs release db/migrate -L LOCK-ID",
    )
)
@click.argument("name", type=options.Spelt())
@click.option(
    "-T", "--ttl", required=True, metavar="TIME", help="The lease ends after this time, such as 5m."
)
@click.option("-w", "--wait", metavar="TIME", help="Wait in the queue for this time [do not wait].")
@click.option(
    "--owner",
    "--client-id",
    "client_id",
    default="",
    metavar="TEXT",
    help="The holder's name, shown to others.",
)
@click.option(
    "-L",
    "--lock-id",
    metavar="ID",
    help="Use this lease id, 22 to 64 random characters: then you can safely repeat the command.",
)
@click.option(
    "--capacity",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Allow N holders at a time [1].",
)
@click.option(
    "--kind",
    type=click.Choice(("lock", "semaphore")),
    help="Kind of resource [semaphore if --capacity is above 1, else lock].",
)
@click.option(
    "--units",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Take N units of the capacity [1].",
)
@click.option(
    "--priority", type=int, default=0, metavar="P", help="Higher goes first in the queue [0]."
)
@click.option("--note", metavar="TEXT", default="", help="A note, shown to waiters.")
@base64_name
@options.store
@options.as_json
def acquire(as_json: bool, **wanted: Any) -> int:
    """Acquire a lease on NAME and print its id.

    NOTHING RENEWS the lease after this command ends. It ends after --ttl, even if you still work. Call
    `dibs renew` well before that, and `dibs release` when you are done. To hold NAME while a command
    runs, use `dibs run`: it renews the lease, and stops the command if the lease is lost.

    The output is the lease id (LOCK-ID) and the fencing token (SEQUENCER). Keep the id secret: with it
    anyone can renew and release.

    Exit codes: 75 not acquired, 69 store unreachable, 77 access denied, 64 usage error, 128+N stopped
    by signal N while waiting.
    """
    needs_stdout("the lease id would be lost")
    _check(wanted)
    voice, signals = Voice(as_json), Signals()
    signals.install()
    try:
        return _acquire(wanted, voice, signals, as_json)
    except BackendUnavailable as error:
        if not error.busy:
            raise
        voice.fail(error, NOT_ACQUIRED)  # another transaction has the row; the store itself is well
        return NOT_ACQUIRED
    except RuntimeError:
        signals.check()  # within the standard library's locks an interrupt may become this
        raise


def _check(wanted: dict[str, Any]) -> None:
    """Raises a usage error for options that contradict each other."""
    if wanted["units"] > wanted["capacity"]:
        raise click.UsageError("--units must not be more than --capacity")
    if wanted["kind"] == "lock" and wanted["capacity"] > 1:
        raise click.UsageError("a lock has one holder: leave out either --capacity or --kind lock")
    given = wanted["lock_id"]
    if given is not None and not _FEWEST <= len(id_of(given)) <= 64:
        raise click.UsageError(
            "--lock-id must be 22 to 64 random characters; without it Dibs makes one"
        )


def _acquire(wanted: dict[str, Any], voice: Voice, signals: Signals, as_json: bool) -> int:
    kind: Acquirable = wanted["kind"] or ("semaphore" if wanted["capacity"] > 1 else "lock")
    ttl, wait = ttl_of(wanted["ttl"]), wait_of(wanted["wait"])
    name = bytes_of(wanted["name"], wanted["is_base64"])
    with options.open_client(wanted["url"]) as client:
        leases = unattended(client, kind, name)
        try:
            ask = partial(client.status, name, kind)
            held = _held(leases, wanted, ttl, wait, voice, signals, ask)
            early = signals.hold()
        except Interrupted:
            leases.give_up()  # it may have been granted in this moment
            raise
        if early is not None:
            step(leases.release(held.id))
            raise Interrupted(early)
        try:
            _tell(held, ttl, as_json)
        except OSError:
            step(leases.release(held.id))  # the id was not printed, so nobody else could
            raise
    if voice.is_live:
        voice.say("acquired", _advice(held, ttl))
    return 0


def _held(
    leases: "ManualLeases",
    wanted: dict[str, Any],
    ttl: float,
    wait: float | None,
    voice: Voice,
    signals: Signals,
    ask: Callable[[], object],
) -> "ManualLease":
    with Speaker(voice, None if wait == 0 else ask) as speaker:

        def tell(waiting: "Waiting") -> None:
            signals.check()
            speaker.tell(waiting)

        chosen = ("units", "capacity", "note", "priority", "lock_id")
        units, capacity, note, priority, lease_id = (wanted[option] for option in chosen)
        asking = leases.acquire(
            wanted["client_id"] or _somebody(),
            ttl,
            units=units,
            capacity=capacity,
            note=note,
            priority=priority,
            wait=wait,
            lease_id=lease_id,
            on_wait=tell,
        )
        return step(asking)


def _somebody() -> str:
    """The default owner: host and user, without a process, as this one ends."""
    try:
        return f"{gethostname()}/{getpass.getuser()}"
    except (OSError, KeyError):
        return gethostname()


def _tell(held: "ManualLease", ttl: float, as_json: bool) -> None:
    if not as_json:
        print(f"LOCK-ID: {held.id}\nSEQUENCER: {held.token}", flush=True)
        return
    from dibs.cli.output import emit, name_shape

    emit(
        name_shape(held.key)
        | {
            "lock_id": held.id,
            "sequencer": held.token,
            "ttl": ttl,
            "expires_in": round(held.remaining, 3),
            "slots": list(held.slots),
        }
    )


def _advice(held: "ManualLease", ttl: float) -> str:
    name = shown(held.key)
    return (
        f"you hold {name} for {span(held.remaining)}; nothing renews it. Before it ends:\n"
        f"  dibs renew {name} --ttl {ttl:g} --lock-id {held.id}\n"
        f"  dibs release {name} --lock-id {held.id}"
    )
