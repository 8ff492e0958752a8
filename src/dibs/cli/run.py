"""`dibs run`: hold a lease while a command runs."""

import os
from typing import TYPE_CHECKING, Any

import click

from dibs.cli import options
from dibs.cli.acquiring import acquire, warn_of_other_kinds
from dibs.cli.child import NotStarted
from dibs.cli.exits import LOST, NOT_ACQUIRED, SIGNALLED
from dibs.cli.signals import Interrupted, Signals
from dibs.cli.supervise import Supervisor
from dibs.cli.terminal import Terminal
from dibs.cli.voice import Voice
from dibs.cli.warden import Warden
from dibs.cli.wording import printable, shown
from dibs.errors import AcquireTimeout, BackendUnavailable, DibsError

if TYPE_CHECKING:
    from dibs.sync import Client, Lease

_HOW = "dibs run NAME [OPTIONS] -- CMD [ARGS]..."


class Run(click.Command):
    """A verb whose command line ends at `--`: what follows is the command's, to the letter."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set what follows the first `--` aside, and require that there is something."""
        own, dashes, command = _split(args)
        try:
            rest = super().parse_args(ctx, own)
        except click.UsageError as error:
            if dashes or "extra argument" not in error.format_message():
                raise
            raise click.UsageError(f"put -- before the command, as in: {_HOW}", ctx) from None
        if not command and not ctx.resilient_parsing:
            given = "nothing follows --" if dashes else "no command is given"
            raise click.UsageError(f"{given}: say what to run, as in: {_HOW}", ctx)
        ctx.params["command"] = command
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage line's pieces."""
        return [*super().collect_usage_pieces(ctx), "-- CMD [ARGS]..."]


def _split(args: list[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in args:
        return args, False, []
    at = args.index("--")
    return args[:at], True, args[at + 1 :]


@click.command(cls=Run)
@click.argument("name", type=options.Name())
@click.option("--wait", metavar="TIME", help="Queue so long, such as 10m. Else for ever.")
@click.option("--no-wait", is_flag=True, help="Try once.")
@click.option("--ttl", metavar="TIME", help="The store keeps the lease so long unrenewed [30s].")
@click.option(
    "--lock-delay",
    metavar="TIME",
    help="Should the lease expire, keep NAME closed for so long [0s].",
)
@click.option("--capacity", type=click.IntRange(1), default=1, help="Let so many run at a time.")
@click.option(
    "--kind",
    type=click.Choice(("lock", "semaphore")),
    help="What NAME is [a semaphore with --capacity, else a lock].",
)
@click.option("--units", type=click.IntRange(1), default=1, help="Take so many of the capacity.")
@click.option(
    "--priority",
    type=int,
    metavar="P",
    help="Higher comes first in the queue [0].",
)
@click.option("--note", metavar="TEXT", help="Why; shown to those who wait.")
@click.option(
    "-E",
    "--conflict-exit-code",
    "busy_code",
    type=click.IntRange(0, 255),
    default=NOT_ACQUIRED,
    metavar="CODE",
    help=f"Exit with CODE where the lease was not to be had [{NOT_ACQUIRED}].",
)
@options.store
@options.as_json
def run(busy_code: int, as_json: bool, **wanted: Any) -> int:
    """Hold NAME while CMD runs, and exit as CMD does.

    CMD finds LEASE_NAME, LEASE_KEY, LEASE_TOKEN, LEASE_SLOT, LEASE_SLOTS and LEASE_OWNER in its environment.
    When the lease is lost, CMD and all it started are ended before the store lets anybody else in.

    Other exit codes: 75 not acquired, 76 lease lost, 69 store unreachable, 77 forbidden, 64 usage,
    126 and 127 as a shell's, 128+N ended by signal N.
    """
    if wanted["units"] > wanted["capacity"]:
        raise click.UsageError("--units is more than --capacity: it could never be granted")
    if wanted["kind"] == "lock" and wanted["capacity"] > 1:
        raise click.UsageError("--kind lock: a lock lets one run; leave out --capacity, or --kind")
    if wanted["wait"] is not None and wanted["no_wait"]:
        raise click.UsageError("--wait and --no-wait: choose one")
    voice = Voice(as_json)
    if os.environb.get(b"LEASE_NAME") == wanted["name"]:
        voice.say("warning", "this runs under a lease of the same name, and may wait for itself")
    warden = Warden.start()
    try:
        return _Run(voice, warden, wanted).run()
    except AcquireTimeout as error:
        voice.fail(error, busy_code)
        return busy_code
    except BackendUnavailable as error:
        if not error.busy:
            raise
        voice.fail(error, busy_code)  # somebody's transaction has it: the store itself is well
        return busy_code
    finally:
        warden.dismiss()


class _Run:
    """One run, from the queue to the release."""

    def __init__(self, voice: Voice, warden: Warden, wanted: dict[str, Any]) -> None:
        self._voice = voice
        self._warden = warden
        self._wanted = wanted
        self._signals = Signals()

    def run(self) -> int:
        self._signals.install()
        try:
            with options.open_client(self._wanted["url"]) as client:
                return self._run_with(client)
        except NotStarted as error:
            self._voice.say("error", printable(str(error)), exit_code=error.code)
            return error.code
        except Interrupted as signal:
            return SIGNALLED + signal.signum
        except RuntimeError:
            self._signals.check()  # within the standard library's locks an interrupt may become this
            raise

    def _run_with(self, client: "Client") -> int:
        wake = self._signals.wake
        lease = acquire(client, self._wanted, self._voice, lambda lost: wake(), self._signals.check)
        try:
            early = self._signals.hold()
            if early is not None:
                return SIGNALLED + early
            warn_of_other_kinds(client, lease.key, self._wanted, self._voice)
            return self._hold(lease)
        finally:
            self._release(lease)

    def _hold(self, lease: "Lease") -> int:
        """Run the command under the lease."""
        lease.ensure()
        supervisor = Supervisor(lease, self._warden, self._signals, Terminal(), self._voice)
        environment = os.environ | variables(self._wanted["name"], lease)
        if supervisor.run(self._wanted["command"], environment) and supervisor.code is not None:
            return supervisor.code
        self._tell_loss(lease, supervisor.code)
        return LOST

    def _tell_loss(self, lease: "Lease", code: int | None) -> None:
        command = printable(self._wanted["command"][0])
        try:
            lease.ensure()
            what = f"the lease on {shown(lease.key)} was lost"
        except DibsError as error:
            what = str(error)
        self._voice.say(
            "lost",
            f"{what}\n  {command} was ended (its exit code: {code})",
            reason=lease.reason,
            command_exit_code=code,
            exit_code=LOST,
        )

    def _release(self, lease: "Lease") -> None:
        """Give it up; where the store can't be told, or somebody is impatient, it ends by itself."""
        lost, told = lease.lost, "the store did not answer"
        self._signals.end()
        try:
            if lease.release() or lost:
                return
        except DibsError as error:
            told = str(error)
        except Interrupted:
            told = "interrupted"
        finally:
            self._signals.hold()
        self._voice.say("warning", f"not released, so it may stand until it expires: {told}")


def variables(name: bytes, lease: "Lease") -> dict[str, str]:
    """What the command finds in its environment."""
    slots = ",".join(map(str, lease.slots))
    return {
        "LEASE_NAME": os.fsdecode(name),
        "LEASE_KEY": os.fsdecode(lease.key),
        "LEASE_TOKEN": str(lease.token),
        "LEASE_SLOT": slots.partition(",")[0],
        "LEASE_SLOTS": slots,
        "LEASE_OWNER": lease.owner,
    }
