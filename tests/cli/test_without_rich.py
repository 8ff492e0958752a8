"""On a terminal without rich: whoever has `server` alone has the command line too, without its tables."""

import json
import os
import pty
import subprocess
import sys

import pytest

from tests.cli.processes import LONG, Cli, end

pytestmark = pytest.mark.once

_HIDDEN = "import sys; sys.modules['rich'] = None; "
_DIBS = f"{_HIDDEN}from dibs.cli import main; sys.exit(main())"
_WATCH = f"""{_HIDDEN}
from dibs.cli.voice import Voice
from dibs.cli.watching import watching
assert Voice().is_live
with watching(Voice()) as watch:
    print(watch.__qualname__)
"""


def at_a_terminal(cli: Cli, program: str, *words: str) -> tuple[int, list[str]]:
    """The exit code, and the lines that its terminal shows."""
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        env=cli.environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""
    with os.fdopen(screen, "rb", buffering=0) as reader:
        while True:
            try:
                piece = reader.read(4096)
            except OSError:  # so a terminal ends, once nobody has it
                break
            if not piece:
                break
            shown += piece
    return process.wait(LONG), shown.decode().splitlines()


def test_what_is_held_is_listed_as_for_a_pipe(cli: Cli) -> None:
    cli.hold("x", stdin=subprocess.PIPE)
    for words in (("list",), ("top", "--once")):
        code, (head, row) = at_a_terminal(cli, _DIBS, *words)
        assert (code, head.split()[:2]) == (0, ["KIND", "NAME"])
        assert row.split()[:2] == ["lock", "x"]


def test_keys_are_listed_as_for_a_pipe(cli: Cli) -> None:
    records = ("--records", f"sqlite:///{cli.folder / 'records.db'}")
    made = end(cli.start("keys", "create", "--name", "a", "--scope", "read", "--json", *records))
    code, (head, row) = at_a_terminal(cli, _DIBS, "keys", "list", *records)
    assert code == 0
    assert head.split() == ["ID", "NAME", "SCOPES", "DIRECTORIES", "CREATED", "EXPIRES"]
    assert row.split()[:2] == [json.loads(made[1])["id"], "a"]


def test_verify_tells_by_lines_how_far_it_is(cli: Cli) -> None:
    code, shown = at_a_terminal(cli, _WATCH)
    assert (code, shown) == (0, ["_lines.<locals>.watch"])


def test_top_says_what_it_needs(cli: Cli) -> None:
    code, shown = at_a_terminal(cli, _DIBS, "top")
    assert code == 64
    assert shown == ["dibs: the package rich is missing: pip install 'dibs[cli]'"]
