"""Options of all verbs: a letter has one meaning, and the examples of `--help` are accepted."""

import shlex
import subprocess
from collections import defaultdict
from collections.abc import Iterator

import click
import pytest

from dibs.cli.app import app
from tests.cli.processes import DIBS, LONG, Cli


def verbs(command: click.Command = app, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Each verb with its words, groups included."""
    yield " ".join(("dibs", *path)), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from verbs(found, *path, name)


ALL = dict(verbs())


def examples(command: click.Command) -> list[str]:
    """The command lines in the epilog, without what explains them."""
    lines = (command.epilog or "").partition("Examples:\n")[2].splitlines()
    return [line.strip().partition("   ")[0] for line in lines]


def test_a_letter_has_one_meaning() -> None:
    meanings: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for command in ALL.values():
        for option in command.params:
            names = (*option.opts, *option.secondary_opts)
            long = tuple(name for name in names if name.startswith("--"))
            for name in names:
                if len(name) == 2:
                    meanings[name].add(long)
    assert {"-n", "-w", "-E", "-q", "-L", "-T"} <= meanings.keys()
    assert {letter: found for letter, found in meanings.items() if len(found) > 1} == {}


def test_store_is_a_name_and_url_a_url() -> None:
    found = {
        (name, option.metavar)
        for command in ALL.values()
        for option in command.params
        if isinstance(option, click.Option)
        for name in option.opts
        if name in ("--store", "--url")
    }
    assert found == {("--store", "NAME"), ("--url", "URL")}


@pytest.mark.parametrize("verb", ALL)
def test_each_verb_has_an_example(verb: str) -> None:
    assert examples(ALL[verb]), verb


@pytest.mark.parametrize("line", sorted({line for each in ALL.values() for line in examples(each)}))
def test_the_examples_are_accepted(line: str) -> None:
    if line.startswith("eval"):
        line = line.removeprefix('eval "$(').removesuffix(')"')
    words = shlex.split(line.partition(" | ")[0])
    assert words.pop(0) == "dibs"
    command: click.Command = app
    with app.make_context("dibs", words) as context:
        rest = [*context._protected_args, *context.args]
        while isinstance(command, click.Group):
            name, found, rest = command.resolve_command(context, rest)
            assert found is not None
            command = found
            context = command.make_context(name, rest, parent=context)  # raises for a wrong option
            rest = [*context._protected_args, *context.args]


CRONTAB = [
    "flock -n nightly echo done",
    "flock -n -E 3 nightly echo done",
    "flock -w 0.1 -E 3 nightly echo done",
    "flock nightly sh -c 'echo done'",
]


@pytest.mark.parametrize("line", CRONTAB)
def test_a_crontab_of_flock_changes_one_word(cli: Cli, line: str) -> None:
    changed = line.replace("flock", shlex.join([*DIBS, "run"]))

    def run() -> tuple[int, str]:
        done = subprocess.run(  # noqa: PLW1510 - its code is what is tested
            ["sh", "-c", changed], env=cli.environment, capture_output=True, text=True, timeout=LONG
        )
        return done.returncode, done.stdout

    assert run() == (0, "done\n")
    if line != CRONTAB[-1]:  # which would wait
        cli.hold("nightly", stdin=subprocess.PIPE)
        assert run() == (3 if "-E 3" in line else 75, "")


def test_options_behind_a_command_without_dashes_are_the_commands(cli: Cli) -> None:
    done = cli("run", "-n", "x", "echo", "-q", "-E", "3", "--json", "--help")
    assert (done.returncode, done.stdout) == (0, "-q -E 3 --json --help\n")
    cli.hold("x", stdin=subprocess.PIPE)
    busy = cli("run", "-n", "x", "echo", "-q", "--json")
    assert busy.returncode == 75
    assert busy.stderr.startswith("dibs: "), "neither quiet nor JSON: those are options of echo"
    missing = cli("run", "-n", "y", "no-such-command", "--json")
    assert (missing.returncode, missing.stderr[:6]) == (127, "dibs: ")


def test_short_options_follow_the_name_too(cli: Cli) -> None:
    cli.hold("x", stdin=subprocess.PIPE)
    for options in ("-n", "-w 0.1", "-w0.1"):
        done = cli("run", "x", *options.split(), "-q", "-E", "3", "--", "echo", "never")
        assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    assert cli("acquire", "x", "--ttl", "5s", "-w", "0.1").returncode == 75
