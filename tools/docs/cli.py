"""The reference of the command line, made from its commands: the same texts as `--help`."""

import inspect
import re
from collections.abc import Iterator

import click

from dibs.cli.app import _ALIASES, _GROUPS, app

INTRO = """\
# Commands and options

These are the texts of `dibs VERB --help`. The [guide](../cli.md) explains exit codes, signals, JSON output,
and what happens when a lease is lost. Verbs that use a store accept `--url` and `--store`, before the verb or
after it:

"""


def records_of(*options: click.Option) -> list[tuple[str, str] | None]:
    context = click.Context(app)
    return [each.get_help_record(context) for each in options]


COMMON = records_of(*(each for each in app.params if isinstance(each, click.Option)))
"""Options that stand in one place, and not with each verb."""


def page() -> str:
    """The whole page."""
    context = click.Context(app, info_name="dibs")
    sections = []
    for group, verbs in _GROUPS.items():
        sections.append(f"## {group}")
        for verb in verbs:
            command = app.get_command(context, verb)
            assert command is not None
            sections += described(command, click.Context(command, context, verb), "###")
    common = [row for row in COMMON if row and "--version" not in row[0]]
    return INTRO + table(common) + "\n\n" + "\n\n".join(sections) + "\n"


def described(command: click.Command, context: click.Context, heading: str) -> Iterator[str]:
    """A command: its usage, help, options and examples; then its subcommands."""
    yield f"{heading} {context.command_path}"
    yield block(command.get_usage(context).removeprefix("Usage: "), "text")
    if short := [word for word, verb in _ALIASES.items() if verb == context.info_name]:
        yield f"Short: `{short[0]}`."
    yield prose(command.help or "")
    records = (each.get_help_record(context) for each in command.get_params(context))
    found = [row for row in records if row and row[1] and row not in COMMON]
    if found := [row for row in found if "--help" not in row[0]]:
        yield table(found)
    if command.epilog:
        lines = inspect.cleandoc(command.epilog.partition("Examples:\n")[2])
        yield block(re.sub(r"(?<=\S) {3,}(?=\S)", "  # ", lines), "sh")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from described(inner, click.Context(inner, context, name), f"{heading}#")


def table(rows: list[tuple[str, str]]) -> str:
    lines = (f"| {code(option)} | {prose(text)} |" for option, text in rows)
    return "\n".join(("| option | |", "|---|---|", *lines))


def block(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```"


CODE = re.compile(
    r"(?<![\w`/-])"
    r"(--?[a-z][\w-]*"  # --option
    r"|\[?[A-Z]{2,}(?:_[\w<>]+)+(?:\.\w+)?"  # DIBS_VARIABLE
    r"|\[stores\.<name>\]"
    r"|[a-z]+:/{2,}[\w./]*\w)"  # a URL
)


def code(text: str) -> str:
    """Words of an option as code, in a cell of a table."""
    return f"`{text}`".replace("|", "\\|")


def prose(text: str) -> str:
    """A text of `--help` as Markdown."""
    plain = inspect.cleandoc(text).replace("\b\n", "").replace("|", "\\|")
    parts = re.split(r"(`[^`]*`)", plain)
    return "".join(part if part.startswith("`") else CODE.sub(r"`\1`", part) for part in parts)
