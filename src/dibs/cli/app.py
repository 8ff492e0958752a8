"""The command line as a whole: which verbs there are, and how each way to fail is told."""

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import click

from dibs.cli.exits import BUG, SIGNALLED, UNWRITTEN, USAGE, code_of
from dibs.cli.streams import Unwritten, discard_stdout, fill, watched_stdout
from dibs.cli.voice import Voice
from dibs.errors import CapacityWarning, DibsError, ImplicitStoreWarning

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_VERBS = {
    "run": "dibs.cli.run:run",
    "acquire": "dibs.cli.acquire:acquire",
    "renew": "dibs.cli.renew:renew",
    "release": "dibs.cli.release:release",
    "list": "dibs.cli.listing:listing",
    "show": "dibs.cli.show:show",
    "watch": "dibs.cli.watch:watch",
    "events": "dibs.cli.events:events",
    "top": "dibs.cli.top:top",
    "revoke": "dibs.cli.revoke:revoke",
    "migrate": "dibs.cli.migrate:migrate",
    "doctor": "dibs.cli.doctor:doctor",
    "verify": "dibs.cli.verify:verify",
    "serve": "dibs.cli.serve:serve",
    "demo": "dibs.cli.demo.verb:demo",
    "temporal": "dibs.cli.temporal:temporal",
    "keys": "dibs.cli.keys:keys",
    "restrict": "dibs.cli.restrict:restrict",
    "move": "dibs.cli.move:move",
    "completion": "dibs.cli.completion:completion",
    "version": "dibs.cli.version:version",
}

_ALIASES = {"acq": "acquire", "rl": "release", "ls": "list"}
"""Shorter words for verbs."""

COMPLETE = "_DIBS_COMPLETE"
"""By this variable a shell asks what may stand next: see `dibs completion`."""

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
    """Imports a verb's module when the verb is asked for."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args:
            args = [_ALIASES.get(args[0], args[0]), *args[1:]]
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            meant = _meant(args[0]) if args else None
            if meant is not None:
                ctx.fail(f"{error.message} {meant}")
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module, _, name = _VERBS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Verbs, for which none is imported, and options."""
        from click.shell_completion import CompletionItem

        verbs = [CompletionItem(verb) for verb in _VERBS if verb.startswith(incomplete)]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]


def _meant(word: str) -> str | None:
    """What whoever has written that probably wants."""
    if word in _MEANT:
        return f"For that there is `dibs {_MEANT[word]}`."
    from difflib import get_close_matches

    close = get_close_matches(word, _VERBS, n=1)
    return f"Did you mean `dibs {close[0]}`?" if close else None


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from dibs.cli.version import line

        click.echo(line())
        context.exit()


def _named_store(context: click.Context, _: click.Parameter, name: str | None) -> None:
    context.obj = name


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="The same as the verb.",
)
@click.option(
    "--store",
    metavar="NAME",
    expose_value=False,
    callback=_named_store,
    help="The store of that name: DIBS_STORES__<NAME>__URL, or [stores.<name>] of DIBS_CONFIG.",
)
def app() -> None:
    """Let one at a time do a thing, across processes: with leases that pass on when a holder dies."""


def serve(arguments: Sequence[str] | None) -> int:
    """Run one command line; every failure is a line or two on stderr and an exit code."""
    fill()
    if arguments is None and (asked := os.environ.get(COMPLETE)):
        from dibs.cli.completion import complete

        complete(app, asked)
    given = list(sys.argv[1:] if arguments is None else arguments)
    voice = Voice(as_json="--json" in given[: given.index("--") if "--" in given else None])
    _warn_through(voice)
    if any(each.startswith("DIBS_") for each in os.environ):
        _warn_of_misspelt(voice)
    try:
        return _invoke(given)
    except BrokenPipeError:  # nobody reads stdout any more
        discard_stdout()
        return SIGNALLED + signal.SIGPIPE
    except Unwritten as error:
        discard_stdout()
        voice.say("error", f"stdout could not be written: {error.strerror}", exit_code=UNWRITTEN)
        return UNWRITTEN
    except click.ClickException as error:
        _tell_usage(error, voice, given)
        return USAGE
    except DibsError as error:
        _trace_on_request()
        code = code_of(error)
        voice.fail(error, code)
        return code
    except KeyboardInterrupt as error:
        return SIGNALLED + getattr(error, "signum", 2)
    except Exception as error:  # noqa: BLE001 - nobody at a prompt can read a traceback
        _trace_on_request()
        voice.say("error", f"unexpected {type(error).__name__}: {error}", exit_code=BUG)
        return BUG


def _invoke(given: list[str]) -> int:
    asked = bool(given)  # click takes out what it reads
    with watched_stdout():
        try:
            with app.make_context("dibs", given or ["--help"]) as context:
                code = app.invoke(context)
        except click.exceptions.Exit as done:
            code = done.exit_code
    return int(code or 0) if asked else USAGE


def _tell_usage(error: click.ClickException, voice: Voice, given: Sequence[str]) -> None:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else _path_in(given)
    told = error.format_message()
    variable = getattr(getattr(error, "param", None), "envvar", None)
    if variable and isinstance(error, click.MissingParameter):
        told = f"{told} Or set {variable}."
    voice.say("error", f"{told}\n  Try: {path} --help", exit_code=USAGE)


def _path_in(given: Sequence[str]) -> str:
    """The verb that is meant. An option without its value is an error of click's that does not say."""
    path, command = "dibs", cast("click.Group", app)
    for word in given:
        verb = _ALIASES.get(word, word)
        found = command.get_command(click.Context(command), verb)
        if found is not None:
            path = f"{path} {verb}"
            if not isinstance(found, click.Group):
                break
            command = found
    return path


def _warn_of_misspelt(voice: Voice) -> None:
    from dibs.cli.variables import misspelt

    for told in misspelt(os.environ):
        voice.say("warning", told)


def _warn_through(voice: Voice) -> None:
    """Have the library's warning for people told as everything else is."""
    plain = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, ImplicitStoreWarning | CapacityWarning):
            voice.say("warning", str(message))
        else:
            plain(message, category, *where, **more)

    warnings.simplefilter("always", ImplicitStoreWarning)
    warnings.simplefilter("always", CapacityWarning)
    warnings.showwarning = show


def _trace_on_request() -> None:
    """Print where it happened, for those who look for a bug."""
    if os.environ.get("DIBS_DEBUG") == "1":
        import traceback

        traceback.print_exc()
