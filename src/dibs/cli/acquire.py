"""`dibs acquire`: a lease that outlives the command, until its ttl is over."""

import getpass
from collections.abc import Callable
from functools import partial
from socket import gethostname
from typing import TYPE_CHECKING, Any

import click

from dibs.cli import options
from dibs.cli.by_id import Acquirable, id_of, ttl_of, unattended, wait_of
from dibs.cli.exits import NOT_ACQUIRED, SIGNALLED
from dibs.cli.naming import base64_name, bytes_of
from dibs.cli.signals import Interrupted, Signals
from dibs.cli.streams import needs_stdout
from dibs.cli.voice import Voice
from dibs.cli.waiting import Speaker
from dibs.cli.wording import shown, span
from dibs.errors import BackendUnavailable
from dibs.runtime.step import step

if TYPE_CHECKING:
    from dibs.primitives.by_id import HeldById, Unattended
    from dibs.sync import Waiting

_FEWEST = 22
"""Characters of an id that nobody guesses: 128 bits."""


@click.command()
@click.argument("name", type=options.Spelt())
@click.option(
    "-T", "--ttl", required=True, metavar="TIME", help="It stands so long, unless renewed."
)
@click.option("--wait", metavar="TIME", help="Queue so long, such as 10m. Else try once.")
@click.option("-L", "--client-id", default="", metavar="TEXT", help="Who holds it, for people.")
@click.option(
    "--lock-id",
    metavar="ID",
    help="A random id of your own, of 22 to 64 characters: the same command may then be given again.",
)
@click.option(
    "--capacity", type=click.IntRange(1), default=1, help="Let so many hold it at a time."
)
@click.option(
    "--kind",
    type=click.Choice(("lock", "semaphore")),
    help="What NAME is [a semaphore with --capacity, else a lock].",
)
@click.option("--units", type=click.IntRange(1), default=1, help="Take so many of the capacity.")
@click.option("--priority", type=int, default=0, metavar="P", help="Higher comes first [0].")
@click.option("--note", metavar="TEXT", default="", help="Why; shown to those who wait.")
@base64_name
@options.store
@options.as_json
def acquire(as_json: bool, **wanted: Any) -> int:
    """Acquire NAME, and print the id by which it is renewed and released.

    NOTHING RENEWS IT once this command has ended: after --ttl it is free for others, whatever you still do.
    Say `dibs renew` well before that, and `dibs release` when you are done. To hold NAME for as
    long as a command runs, there is `dibs run`, which renews it and ends the command should it be lost.

    The id is a secret: whoever has it can renew and release. Exit codes: 75 not acquired, 69 store
    unreachable, 77 forbidden, 64 usage, 128+N ended by signal N while it waited.
    """
    needs_stdout("nobody would know the lease's id")
    _check(wanted)
    voice, signals = Voice(as_json), Signals()
    signals.install()
    try:
        return _acquire(wanted, voice, signals, as_json)
    except Interrupted as signal:
        return SIGNALLED + signal.signum
    except BackendUnavailable as error:
        if not error.busy:
            raise
        voice.fail(error, NOT_ACQUIRED)  # somebody's transaction has it: the store itself is well
        return NOT_ACQUIRED
    except RuntimeError:
        signals.check()  # within the standard library's locks an interrupt may become this
        raise


def _check(wanted: dict[str, Any]) -> None:
    """Raises a usage error for what can't be."""
    if wanted["units"] > wanted["capacity"]:
        raise click.UsageError("--units is more than --capacity: it could never be granted")
    if wanted["kind"] == "lock" and wanted["capacity"] > 1:
        raise click.UsageError(
            "--kind lock: one at a time has a lock; leave out --capacity, or --kind"
        )
    given = wanted["lock_id"]
    if given is not None and not _FEWEST <= len(id_of(given)) <= 64:
        raise click.UsageError(
            "--lock-id: give 22 to 64 random characters, or leave it out and one is made"
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
            leases.give_up()  # it may have been granted just then
            raise
        if early is not None:
            step(leases.release(held.id))
            return SIGNALLED + early
        try:
            _tell(held, ttl, as_json)
        except OSError:
            step(leases.release(held.id))  # nobody has read the id, so nobody could
            raise
    if voice.is_live:
        voice.say("acquired", _advice(held, ttl))
    return 0


def _held(
    leases: "Unattended",
    wanted: dict[str, Any],
    ttl: float,
    wait: float | None,
    voice: Voice,
    signals: Signals,
    ask: Callable[[], object],
) -> "HeldById":
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
    """Who holds it where nobody said so: no process, as this one ends."""
    try:
        return f"{gethostname()}/{getpass.getuser()}"
    except (OSError, KeyError):
        return gethostname()


def _tell(held: "HeldById", ttl: float, as_json: bool) -> None:
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


def _advice(held: "HeldById", ttl: float) -> str:
    name = shown(held.key)
    return (
        f"{name} is yours for {span(held.remaining)}, and nothing renews it. Before that:\n"
        f"  dibs renew {name} --ttl {ttl:g} --lock-id {held.id}\n"
        f"  dibs release {name} --lock-id {held.id}"
    )
