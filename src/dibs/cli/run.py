"""`dibs run`: hold a lease while a command runs."""

import os
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from dibs.cli import options
from dibs.cli.exits import LOST, NOT_ACQUIRED
from dibs.cli.options import KINDS, in_use
from dibs.cli.output import Messages, kind_of, printable, shown
from dibs.cli.signals import Interrupted, Signals
from dibs.cli.statuses import holders
from dibs.cli.supervisor import NotStarted, Supervisor, Terminal
from dibs.cli.waiting import WaitProgress
from dibs.cli.warden import Warden, now
from dibs.config import seconds
from dibs.errors import (
    AcquireTimeout,
    BackendUnavailable,
    CapacityWarning,
    DibsError,
    ImplicitStoreWarning,
    NotConfigured,
)
from dibs.model import Holder, Status
from dibs.settings import InvalidSetting

if TYPE_CHECKING:
    from dibs.sync import Client, Lease, Lock, Semaphore

_HOW = "dibs run NAME [OPTIONS] -- CMD [ARGS]..."


class _RunCommand(click.Command):
    """A verb whose own arguments end at `--`; the rest is the command to run.

    As with `flock`, the command can also follow NAME if all options are before NAME.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at the first `--`, or behind NAME; a command must follow."""
        own, dashes, command = _split(args)
        if not dashes and not ctx.resilient_parsing:
            own, command = self._split_at_name(ctx, args)
            if command and ctx.obj is not None and "--json" not in own:
                ctx.obj.as_json = False  # that is an option of the command
        try:
            rest = super().parse_args(ctx, own)
        except click.UsageError as error:
            message = error.format_message()
            if dashes and isinstance(error, click.MissingParameter):
                raise click.UsageError(f"NAME stands before --: {_HOW}", ctx) from None
            if dashes or not message.startswith(("No such option", "Got unexpected extra")):
                raise
            if isinstance(error, click.NoSuchOption) and error.possibilities:
                raise  # a misspelt option of `run`
            raise click.UsageError(f"put -- before the command: {_HOW} ({message})", ctx) from None
        if not command and not ctx.resilient_parsing:
            raise click.UsageError(f"no command given: {_HOW}", ctx)
        ctx.params["command"] = command
        return rest

    def _split_at_name(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str]]:
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False
        try:
            _, command, _ = parser.parse_args(list(args))
        except click.UsageError:
            return args, []  # parsing it all says what is wrong
        if not command or command[0].startswith("-"):
            return args, []
        return args[: len(args) - len(command)], command

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage line's pieces."""
        return [*super().collect_usage_pieces(ctx), "-- CMD [ARGS]..."]


def _split(args: list[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in args:
        return args, False, []
    at = args.index("--")
    return args[:at], True, args[at + 1 :]


@click.command(
    cls=_RunCommand,
    epilog=options.examples(
        "dibs run backup -- ./backup.sh               wait until it is free",
        "dibs run -nq backup -- ./backup.sh           skip if it is running, for cron",
        "dibs run gpu --capacity 4 -- train           four at a time",
    ),
)
@click.argument("name", type=options.Name())
@click.option(
    "-w",
    "--wait",
    metavar="TIME",
    help="Wait in the queue for this time, such as 10m [no limit].",
)
@click.option("-n", "--no-wait", is_flag=True, help="Do not wait: try once.")
@click.option(
    "--ttl",
    metavar="TIME",
    help="How long the store keeps the lease without renewal [30s].",
)
@click.option(
    "--lock-delay",
    metavar="TIME",
    help="If the lease expires, keep others out for this time [0s].",
)
@options.amounts
@click.option(
    "-E",
    "--conflict-exit-code",
    "busy_code",
    type=click.IntRange(0, 255),
    default=NOT_ACQUIRED,
    metavar="CODE",
    help=f"Exit code if the lease is not acquired [{NOT_ACQUIRED}].",
)
@click.option(
    "-q",
    "--quiet",
    is_flag=True,
    help="Print only errors, and nothing if the lease is not acquired.",
)
@options.store
@options.as_json
def run(busy_code: int, as_json: bool, quiet: bool, **wanted: Any) -> int:
    """Run CMD while holding a lease on NAME, and exit with its code.

    If the lease is lost, CMD and its process group are stopped before another holder can start. CMD
    finds LEASE_NAME, LEASE_KEY, LEASE_TOKEN, LEASE_SLOT, LEASE_SLOTS and LEASE_OWNER in its environment.

    Without -- CMD begins after NAME, as with flock; then all options stand before NAME.

    Other exit codes: 75 not acquired, 76 lease lost, 69 store unreachable, 77 access denied, 64 usage
    error, 126 and 127 as a shell, 128+N stopped by signal N.
    """
    options.check_amounts(wanted)
    if wanted["wait"] is not None and wanted["no_wait"]:
        raise click.UsageError("give either --wait or --no-wait, not both")
    messages = Messages(as_json, quiet=quiet)
    if quiet:
        warnings.simplefilter("ignore", ImplicitStoreWarning)
        warnings.simplefilter("ignore", CapacityWarning)
    warden = Warden.start()
    try:
        return _Run(messages, warden, wanted).run()
    except (AcquireTimeout, BackendUnavailable) as error:
        # busy: another transaction has the row; the store itself is well
        if isinstance(error, BackendUnavailable) and not error.busy:
            raise
        if not quiet:
            messages.fail(error, busy_code)
        return busy_code
    finally:
        warden.dismiss()


class _Run:
    """A run of the verb, from the queue to the release."""

    def __init__(self, messages: Messages, warden: Warden, wanted: dict[str, Any]) -> None:
        self._messages = messages
        self._warden = warden
        self._wanted = wanted
        self._signals = Signals()

    def run(self) -> int:
        self._signals.install()
        try:
            with options.open_client() as client:
                return self._run_with(client)
        except NotStarted as error:
            self._messages.show("error", printable(str(error)), exit_code=error.code)
            return error.code
        except RuntimeError:
            self._signals.check()  # within the standard library's locks an interrupt may become this
            raise

    def _run_with(self, client: "Client") -> int:
        wake = self._signals.wake
        lease = acquire(
            client, self._wanted, self._messages, lambda lost: wake(), self._signals.check
        )
        try:
            early = self._signals.hold()
            if early is not None:
                raise Interrupted(early)
            warn_of_other_kinds(client, lease.key, self._wanted, self._messages)
            code = self._hold(lease)
        finally:
            self._release(lease)
        if code != LOST and lease.lost:
            self._report_loss(lease, "had ended by then", code)
            return LOST
        return code

    def _hold(self, lease: "Lease") -> int:
        """Run the command under the lease."""
        lease.ensure()
        supervisor = Supervisor(lease, self._warden, self._signals, Terminal(), self._messages)
        environment = os.environ | variables(self._wanted["name"], lease)
        if supervisor.run(self._wanted["command"], environment) and supervisor.code is not None:
            if (interrupt := supervisor.interrupt) is not None:
                raise interrupt
            return supervisor.code
        self._report_loss(lease, "was stopped", supervisor.code)
        return LOST

    def _report_loss(self, lease: "Lease", how: str, code: int | None) -> None:
        command = printable(self._wanted["command"][0])
        try:
            lease.ensure()
            what = f"the lease on {shown(lease.key)} was lost"
        except DibsError as error:
            what = str(error)
        self._messages.show(
            "lost",
            f"{what}\n  {command} {how} (its exit code: {code})",
            reason=lease.reason,
            command_exit_code=code,
            exit_code=LOST,
        )

    def _release(self, lease: "Lease") -> None:
        """Release the lease. If that fails or is interrupted, it expires by itself."""
        lost, why = lease.lost, "the store did not answer"
        self._signals.end()
        try:
            if lease.release() or lost or lease.lost:
                return
            why = lease.trouble or why
        except DibsError as error:
            why = str(error)
        except Interrupted:
            why = "interrupted"
        finally:
            self._signals.hold()
        self._messages.show(
            "warning", f"the lease was not released and may last until it expires: {why}"
        )


def variables(name: bytes, lease: "Lease") -> dict[str, str]:
    """The command's environment variables."""
    slots = ",".join(map(str, lease.slots))
    return {
        "LEASE_NAME": os.fsdecode(name),
        "LEASE_KEY": os.fsdecode(lease.key),
        "LEASE_TOKEN": str(lease.token),
        "LEASE_SLOT": slots.partition(",")[0],
        "LEASE_SLOTS": slots,
        "LEASE_OWNER": lease.owner,
    }


def acquire(
    client: "Client",
    wanted: dict[str, Any],
    messages: Messages,
    on_lost: Callable[["Lease"], object],
    check: Callable[[], None],
) -> "Lease":
    """Acquire the lease that the options describe. Raises `AcquireTimeout`.

    While it waits, `check` is called from time to time; an exception from it ends the wait.
    """
    primitive = _primitive(client, wanted, on_lost)
    if path := options.missing_file(client):
        messages.show("created", f"creating {path}: this store did not exist")
    units = wanted["units"]
    limit, is_away = primitive.config.wait, False
    until = None if limit is None else now() + seconds(limit, "wait")

    def left() -> float | None:
        return None if until is None else max(until - now(), 0.0)

    try:
        return primitive.acquire(units=units, wait=0)
    except AcquireTimeout as error:
        if wanted["no_wait"]:
            raise
        _refuse_nested(primitive.key, error.holders, wanted["capacity"] - units)
    except BackendUnavailable as error:
        if wanted["no_wait"] or left() == 0:
            raise
        if not error.moving:  # the progress shows a move
            messages.show("unavailable", f"still trying: {error}")
            is_away = True

    def ask() -> None:
        client.status(wanted["name"], primitive.kind)

    with WaitProgress(messages, ask, check=check, is_away=is_away) as progress:
        return primitive.acquire(units=units, wait=left(), on_wait=progress.tell)


def _refuse_nested(key: bytes, holders: Sequence[Holder], room: int) -> None:
    """Raise a usage error if the `dibs run` around us holds what we would wait for, for ever."""
    if os.environb.get(b"LEASE_KEY") != key:
        return
    outer = [each for each in holders if str(each.token) == os.environ.get("LEASE_TOKEN")]
    if outer and outer[0].units > room:
        raise click.UsageError(
            f'the "dibs run" around this command holds {shown(key)} until this command ends, so waiting '
            "for it would never end: use another name, or run the command without a second dibs run"
        )


def _primitive(
    client: "Client", wanted: dict[str, Any], on_lost: Callable[["Lease"], object]
) -> "Lock | Semaphore":
    """A lock, or a semaphore where several may run or one is asked for.

    Options not given are left to the settings.
    """
    name = _text(wanted["name"])
    chosen = ("ttl", "wait", "priority", "note", "lock_delay")
    given = {key: wanted[key] for key in chosen if wanted[key] is not None}
    given["on_lost"] = on_lost
    given["label"] = printable(wanted["command"][0].rpartition("/")[2])
    try:
        if wanted["capacity"] > 1 or wanted["kind"] == "semaphore":
            return client.semaphore(name, capacity=wanted["capacity"], **given)
        return client.lock(name, **given)
    except InvalidSetting as error:
        raise NotConfigured(str(error)) from error  # no option is wrong
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from error


def _text(name: bytes) -> str | bytes:
    """The name as text, if it is UTF-8: only those have settings in the environment."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


def warn_of_other_kinds(
    client: "Client", key: bytes, wanted: dict[str, Any], messages: Messages
) -> None:
    """Warn if the same name is in use under another kind: they do not exclude each other."""
    kind, name = kind_of(key), key.partition(b":")[2]
    others = [other for other in KINDS if other != kind]
    try:
        found = in_use(client, name, others)
    except DibsError:
        return  # the lease itself is what matters
    for status in found:
        other = kind_of(status.key)
        messages.show(
            "warning",
            f"{shown(key)} is also in use as a {other} ({holders(status)}): a {kind} "
            f"does not exclude it. {_instead(status, wanted)}",
            kind=other,
        )


def _instead(status: Status, wanted: dict[str, Any]) -> str:
    """How to use the kind that is in use instead."""
    match kind_of(status.key):
        case "lock":
            given = {
                "--kind": wanted["kind"] is not None,
                "--capacity": wanted["capacity"] > 1,
                "--units": wanted["units"] > 1,
            }
            made_it = " and ".join(option for option, was_given in given.items() if was_given)
            return f"To use the lock, leave out {made_it}."
        case "semaphore" if status.capacity > 1:
            return f"To use the semaphore, add --capacity {status.capacity}."
        case "semaphore":
            return "To use the semaphore, add --kind semaphore."
        case _:
            return "Choose another name."
