"""The first page, command by command, on a file and on Redis."""

import re
from pathlib import Path

import pytest

from tests.cli.processes import end
from tests.how_to.programs import Programs
from tests.pages import blocks

COMMANDS = [
    (command, told)
    for block in blocks("start.md", "console")
    for command, told in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]
IS_DONE = "while not os.path.exists('done'): time.sleep(0.02)"
"""The work of the program, which takes as long as it must instead of four seconds."""


def pattern_of(told: str) -> str:
    """A pattern for the output that a page shows: `…` is for what differs from run to run."""
    return ".*".join(map(re.escape, told.split("…")))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["sqlite", pytest.param("redis", marks=pytest.mark.long)])
def test_the_commands_print_what_the_page_shows(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with Programs("start.md", tmp_path) as programs:
        if store == "redis":
            programs.environment["DIBS_URL"] = request.getfixturevalue("redis_url")
        programs.edit("report.py", "import time\n", "import os\nimport time\n")
        programs.edit("report.py", "time.sleep(4)", IS_DONE)
        is_done = tmp_path / "done"
        for command, told in COMMANDS:
            is_done.touch()
            line = command.replace("sleep 2", "until dibs show report >&2; do sleep 0.1; done")
            if line != command:
                is_done.unlink()
                line = re.sub(r"(; wait|; python report.py)$", r"; touch done\1", line)
            _, out, err = end(programs.start(line))
            assert re.fullmatch(pattern_of(told), out), f"{command}\n{out}{err}"
