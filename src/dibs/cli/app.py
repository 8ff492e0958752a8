"""The `dibs` command: its verbs, and how failures become messages and exit codes."""

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from dibs.cli.exits import BUG, SIGNALLED, UNWRITTEN, USAGE, code_of
from dibs.cli.options import COMPLETE, as_json, examples, store_name, store_url
from dibs.cli.output import Messages, Unwritten, WatchedStdout, discard_stdout, emit, fill
from dibs.errors import CapacityWarning, DibsError, ImplicitStoreWarning
from dibs.version import VERSION

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_GROUPS = {
    "Use": {
        "run": "run:run",
        "acquire": "lease:acquire",
        "renew": "lease:renew",
        "release": "lease:release",
    },
    "Inspect": {
        "list": "listing:listing",
        "show": "show:show",
        "watch": "show:watch",
        "events": "events:events",
    },
    "Operate": {
        "revoke": "lease:revoke",
        "doctor": "doctor:doctor",
        "verify": "verify:verify",
        "migrate": "doctor:migrate",
        "temporal": "temporal:temporal",
    },
    "Service": {
        "serve": "serve:serve",
        "demo": "demo:demo",
        "keys": "keys:keys",
        "restrict": "restrict:restrict",
        "move": "restrict:move",
    },
    "Other": {
        "completion": "completion:completion",
        "version": "app:version",
    },
}
"""Verbs as `--help` groups them, with the module and the function of each."""

_VERBS = {verb: place for group in _GROUPS.values() for verb, place in group.items()}

_ALIASES = {"acq": "acquire", "rl": "release", "ls": "list", "top": "list"}
"""Shorter words for verbs."""

_MEANT = {
    **dict.fromkeys(("status", "info", "get", "describe"), "show"),
    **dict.fromkeys(("lock", "exec", "hold"), "run"),
    **dict.fromkeys(("delete", "rm", "steal"), "revoke"),
    **dict.fromkeys(("ps", "locks"), "list"),
    "unlock": "release",
    "extend": "renew",
    **dict.fromkeys(("check", "ping", "health"), "doctor"),
    "worker": "temporal worker",
}
"""What other tools call our verbs."""


class _Verbs(click.Group):
    """Imports the module of a verb on first use."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.UsageError as error:
            meant = _meant(args[0]) if args else None
            if meant is not None:
                ctx.fail(f"{error.message} {meant}")
            raise
        if name == "top":
            rest = ["--watch", *rest]
        name = _ALIASES.get(name or "", name)
        names = {param.name for param in command.params} if command else set()
        takes_url = isinstance(command, click.Group) or names & {"url", "server"}
        if ctx.meta.get("url") and not takes_url:
            ctx.fail(f"`dibs {name}` takes no --url.{_option_meant('--url', command)}")
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # by `main`, while we import
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs in groups, each with the first sentence of its help."""
        for group, verbs in _GROUPS.items():
            commands = [(verb, self.get_command(ctx, verb)) for verb in verbs]
            with formatter.section(group):
                formatter.write_dl(
                    [(verb, each.get_short_help_str(200)) for verb, each in commands if each]
                )

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = _ALIASES.get(cmd_name, cmd_name)
        if verb not in _VERBS:
            return None
        module, _, name = _VERBS[verb].partition(":")
        command: click.Command = getattr(import_module(f"dibs.cli.{module}"), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Verbs, for which none is imported, and options."""
        from click.shell_completion import CompletionItem

        verbs = [CompletionItem(verb) for verb in _VERBS if verb.startswith(incomplete)]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]


def _meant(word: str) -> str | None:
    """A suggestion for an unknown verb."""
    if word in _MEANT:
        return f"Use `dibs {_MEANT[word]}`."
    from difflib import get_close_matches

    close = get_close_matches(word, _VERBS, n=1)
    return f"Did you mean `dibs {close[0]}`?" if close else None


_OPTIONS = {"--timeout": "--wait", "--url": "--leases"}
"""What other tools, and other verbs, call our options."""


def _option_meant(given: str, command: click.Command | None) -> str:
    """A suggestion for an option that the verb does not have, if it has that one."""
    meant = _OPTIONS.get(given)
    found = [each for each in command.params if meant in each.opts] if command else []
    return f" Use {meant} {found[0].metavar or ''}".rstrip() + "." if found else ""


@click.command(epilog=examples("dibs version --json"))
@as_json
def version(as_json: bool) -> int:
    """Print the version."""
    if as_json:
        emit({"version": VERSION})
    else:
        print(f"dibs {VERSION}")
    return 0


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "dibs run -w 10m nightly -- make report        one report at a time",
        "dibs list                                    show what is held",
        "dibs doctor redis://cache                    check a store",
    ),
)
@click.version_option(package_name="dibs", message="dibs %(version)s", help="Print the version.")
@store_name
@store_url
def app() -> None:
    """Distributed locks for shell commands: only one at a time, on one machine or on many.

    --url and --store can also follow the verb.
    """


def serve(arguments: Sequence[str] | None) -> int:
    """Run one command line. A failure prints a line or two on stderr and returns an exit code."""
    fill()
    if arguments is None and (asked := os.environ.get(COMPLETE)):
        from dibs.cli.completion import complete

        complete(app, asked)
    given = list(sys.argv[1:] if arguments is None else arguments)
    messages = Messages(as_json="--json" in given[: given.index("--") if "--" in given else None])
    _warn_through(messages)
    if any(name.startswith("DIBS_") for name in os.environ):
        from dibs.cli.variables import misspelt

        for warning in misspelt(os.environ):
            messages.show("warning", warning)
    try:
        return _invoke(given, messages)
    except BrokenPipeError:  # nobody reads stdout any more
        discard_stdout()
        return SIGNALLED + signal.SIGPIPE
    except Unwritten as error:
        discard_stdout()
        messages.show("error", f"cannot write to stdout: {error.strerror}", exit_code=UNWRITTEN)
        return UNWRITTEN
    except click.ClickException as error:
        _show_usage_error(error, messages, given)
        return USAGE
    except DibsError as error:
        _trace_on_request()
        code = code_of(error)
        messages.fail(error, code)
        return code
    except KeyboardInterrupt as error:
        signum = getattr(error, "signum", signal.SIGINT)
        if signum == signal.SIGINT:
            raise
        return int(SIGNALLED + signum)
    except Exception as error:  # noqa: BLE001 - nobody at a prompt can read a traceback
        _trace_on_request()
        messages.show("error", f"unexpected {type(error).__name__}: {error}", exit_code=BUG)
        return BUG


def _invoke(given: list[str], messages: Messages) -> int:
    asked = bool(given)  # click takes out what it reads
    watched = WatchedStdout()
    sys.stdout = cast("TextIO", watched)
    try:
        with app.make_context("dibs", given or ["--help"], obj=messages) as context:
            code = app.invoke(context)
    except click.exceptions.Exit as done:
        code = done.exit_code
    finally:
        sys.stdout = watched.plain
    watched.flush()
    return int(code or 0) if asked else USAGE


def _show_usage_error(
    error: click.ClickException, messages: Messages, given: Sequence[str]
) -> None:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else _path_in(given)
    message = error.format_message()
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and isinstance(
        error.ctx.command, click.Group
    ):
        message = f"give a verb: {', '.join(error.ctx.command.list_commands(error.ctx))}"
    if isinstance(error, click.NoSuchOption) and context:
        message += _option_meant(error.option_name, context.command)
    if isinstance(error, click.MissingParameter):
        message = f"{message} {getattr(error.param, 'help', None) or ''}".rstrip()
    messages.show("error", f"{message}\n  Try: {path} --help", exit_code=USAGE)


def _path_in(given: Sequence[str]) -> str:
    """The command path in the arguments. Click's error for an option without a value lacks it."""
    path, command = "dibs", cast("click.Group", app)
    for word in given:
        found = command.get_command(click.Context(command), word)
        if found is not None:
            path = f"{path} {_ALIASES.get(word, word)}"
            if not isinstance(found, click.Group):
                break
            command = found
    return path


def _warn_through(messages: Messages) -> None:
    """Print the library's warnings for users the way all other messages are printed."""
    plain = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, ImplicitStoreWarning | CapacityWarning):
            messages.show("warning", str(message))
        else:
            plain(message, category, *where, **more)

    warnings.simplefilter("always", ImplicitStoreWarning)
    warnings.simplefilter("always", CapacityWarning)
    warnings.showwarning = show


def _trace_on_request() -> None:
    """Print a traceback if DIBS_DEBUG=1."""
    if os.environ.get("DIBS_DEBUG") == "1":
        import traceback

        traceback.print_exc()
