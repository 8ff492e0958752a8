"""The examples run as they stand, in `examples/` and on pages, and print what these say."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import dibs
from dibs.core.timing import margin, renew_after, trusted
from tests.cli.processes import Cli, end, line
from tests.how_to.programs import Programs
from tests.pages import DOCS, blocks, pattern_of, promise_of, run

EXAMPLES = [
    ("../README.md", "Lock", r"only one process is here, with token \d+\n"),
    ("python.md", "payment", "mine, with token "),
    ("python.md", "on_wait=show", "mine\n"),
    ("python.md", "client.list", "lock:order:42 "),
    ("configuration.md", "as it is set", ".*as it is set"),
    ("configuration.md", "in two stores", ".*in two stores, with token"),
    ("configuration.md", "pydantic", ".*about a microsecond"),
    ("integrations/README.md", "RunAgain", "the report of monday"),
    ("lock.md", "", "(?s).*4 more, under token"),
    ("tasklock.md", "", "(?s).*we report, with token"),
    ("leader-election.md", "", "(?s).*term 2 led by"),
    ("allof.md", "", "(?s).*both are given up"),
    ("tasks.md", "billing", r"(?s)polled, with token.*\npoll every 1 s won [1-9].*billing/"),
]
"""The page, a part of the example, and what it prints."""


@pytest.mark.parametrize(("page", "part", "printed"), EXAMPLES)
def test_an_example_prints_what_it_says(page: str, part: str, printed: str, tmp_path: Path) -> None:
    (code,) = (block for block in blocks(page) if part in block)
    settings = {"DIBS_URL": f"sqlite:///{tmp_path}/leases.db"}
    if page == "configuration.md":
        (toml,) = blocks(page, "toml")
        (tmp_path / "dibs.toml").write_text(toml, "utf-8")
        settings = {"DIBS_CONFIG": str(tmp_path / "dibs.toml"), "DIBS_LOCK__CART__WAIT": "3s"}
    assert re.match(printed, run(code, tmp_path, **settings))


def test_the_readme_installs_what_its_commands_need() -> None:
    commands = "".join(blocks("../README.md", "console"))
    (extras,) = re.findall(r"^\$ pip install '\.\[(.*)\]'$", commands, re.MULTILINE)
    assert {"cli", "server"} <= set(extras.split(","))
    assert "DIBS_URL" not in re.sub("^#.*", "", commands, flags=re.MULTILINE), "no made-up host"


@pytest.mark.parametrize("about", ["sys.exit(143)", "task.cancel"], ids=["threads", "asyncio"])
def test_sigterm_releases_as_the_page_says(about: str, tmp_path: Path) -> None:
    (code,) = (block for block in blocks("python.md") if about in block)
    work = 'print("held", flush=True)'
    if "async with" in code:
        code = f"{code.replace('...  # work', f'{work}; await asyncio.sleep(60)')}\nasyncio.run(main())"
    else:
        body = f"with Lock('worker'):\n    {work}\n    threading.Event().wait(60)"
        code = f"{code}\nimport threading\nfrom dibs.sync import Lock\n{body}"
    with Cli(tmp_path) as programs:
        process = programs.start(program=[sys.executable, "-c", code])
        assert line(process) == "held"
        assert programs.status("worker").holders
        process.terminate()
        assert end(process)[0] != 0
        assert not programs.status("worker").holders


MINE = r"mine, with token \d+\n"
PRINTED = {
    "coming-from/shedlock.md": "only one host does this\n",
    "coming-from/celery-once.md": r"only one .* 7 with token \d+\nat most once in ten minutes: 7\n",
    "concepts/lease.md": r"lock:order:42 is held by .*\n.* with \d+ s left\npacked .*\npacked .*\n",
    "concepts/fencing.md": "rows written: 1\nrows written too late: 0\n",
}
"""What the Python of a page prints, if that is not `MINE`."""

PAGES = [str(path.relative_to(DOCS)) for path in sorted(DOCS.glob("co[mn]*/*.md"))]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_the_programs_of_a_page(page: str, tmp_path: Path) -> None:
    printed = "".join(run(code, tmp_path) for code in blocks(page))
    assert re.fullmatch(PRINTED.get(page, MINE), printed)


@pytest.mark.parametrize(("column", "ttl"), [(3, 5.0), (4, 30.0), (5, 300.0)])
def test_the_times_of_a_lease_are_those_of_the_code(column: int, ttl: float) -> None:
    lines = (DOCS / "concepts/time.md").read_text("utf-8").splitlines()
    rows = (line.split("|") for line in lines if line.startswith("| ") and line.count("|") == 6)
    shown = {row[1].strip(): row[column].split() for row in rows if row[1].strip()}
    times = [renew_after(ttl), margin(ttl), trusted(ttl), ttl]
    assert [float(value) for value, _ in shown.values()] == pytest.approx(times, rel=0.03)


def test_crontab_line_of_both_locks(tmp_path: Path) -> None:
    text = (DOCS / "coming-from/cron-flock.md").read_text("utf-8")
    (both,) = re.findall(r"`(flock .*/dibs run .*)`", text)
    both = both.replace("/run/lock/nightly", "old").replace("/usr/local/bin/nightly", "echo ran")
    dibs = Path(sys.executable).with_name("dibs")
    both = both.replace("/opt/dibs/bin/dibs", str(dibs))
    with Cli(tmp_path) as programs:

        def printed(command: str) -> str:
            return programs(command, program=["sh", "-c"], cwd=tmp_path).stdout

        assert printed(both) == "ran\n"
        assert printed(f"flock old {both}") == "", "the old lock excludes it"
        assert printed(f"{dibs} run nightly {both}") == "", "so does the lock of Dibs"


COMMANDS = [
    (command, told)
    for block in blocks("start.md", "console")
    for command, told in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]
IS_DONE = "while not os.path.exists('done'): time.sleep(0.02)"
"""The work of the program, which takes as long as it must instead of four seconds."""


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
        programs.edit("report_async.py", "sleep(4)", "sleep(60)")  # it is revoked before
        is_done = tmp_path / "done"
        for command, told in COMMANDS:
            is_done.touch()
            line = command.replace("sleep 2", "until dibs show report >&2; do sleep 0.1; done")
            if line != command:
                is_done.unlink()
                line = re.sub(r"(; wait|; python report.py)$", r"; touch done\1", line)
            _, out, err = end(programs.shell(line))
            assert re.fullmatch(pattern_of(told), out), f"{command}\n{out}{err}"


PROGRAMS = DOCS.parent / "examples"


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.name)
def test_a_program_prints_what_its_docstring_says(path: Path, tmp_path: Path) -> None:
    promise = promise_of(path.read_text("utf-8"))
    assert promise, f"let the docstring of {path.name} end with a line `Prints: …`"
    with Cli(tmp_path) as programs:
        code, out, err = end(
            programs.start(path, program=[sys.executable, "-W", "error"], cwd=tmp_path)
        )
    assert code == 0, err
    assert re.search(promise, out), out
    assert "Traceback" not in err  # a lost lease may well be logged


def test_every_public_name_is_described() -> None:
    text = "".join(page.read_text("utf-8") for page in DOCS.glob("reference/*.md"))
    wanted = {f"dibs.{name}" for name in dibs.__all__}
    for module in ("dibs.fencing", "dibs.tasks", "dibs.temporal", "dibs.testing"):
        own = import_module(module)
        wanted |= {
            f"{module}.{name}"
            for name in own.__all__
            if getattr(own, name) is not getattr(dibs, name, None)
        }
    assert wanted - set(re.findall(r"^::: (\S+)$", text, re.MULTILINE)) == set()
