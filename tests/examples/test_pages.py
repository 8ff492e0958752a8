"""The examples of pages of the documentation run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from dibs.core.timing import margin, renew_after, trusted
from dibs.sync import connect
from tests.pages import DOCS, blocks, run

EXAMPLES = [
    ("../README.md", "Lock", r"only one process is here, with token \d+\n"),
    ("python.md", "payment", "mine, with token "),
    ("python.md", "on_wait=show", "mine\n"),
    ("python.md", "client.list", "lock:order:42 "),
    ("configuration.md", "as it is set", ".*as it is set"),
    ("configuration.md", "in two stores", ".*in two stores, with token"),
    ("configuration.md", "pydantic", ".*about a microsecond"),
    ("integrations/README.md", "RunAgain", "the report of monday"),
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


def test_all_of_a_page_is_tried() -> None:
    tried = [part for page, part, _ in EXAMPLES if page == "configuration.md"]
    assert len(tried) == len(blocks("configuration.md"))


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
    url = f"sqlite:///{tmp_path / 'leases.db'}"
    environment = os.environ | {"DIBS_URL": url}
    command = [sys.executable, "-c", code]
    with (
        subprocess.Popen(command, env=environment, stdout=PIPE, stderr=PIPE, text=True) as process,
        connect(url) as client,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert client.lock("worker").locked()
        process.terminate()
        process.communicate(timeout=30)
        assert process.returncode != 0
        assert not client.lock("worker").locked()


MINE = r"mine, with token \d+\n"
PRINTED = {
    "coming-from/redis-py.md": MINE,
    "coming-from/python-redis-lock.md": MINE,
    "coming-from/filelock.md": MINE,
    "coming-from/shedlock.md": "only one host does this\n",
    "coming-from/redisson.md": MINE,
    "coming-from/advisory-locks.md": MINE,
    "coming-from/celery-once.md": r"only one .* 7 with token \d+\nat most once in ten minutes: 7\n",
    "coming-from/grelmicro.md": MINE,
    "concepts/lease.md": r"lock:order:42 is held by .*\n.* with \d+ s left\npacked .*\npacked .*\n",
    "concepts/fencing.md": "rows written: 1\nrows written too late: 0\n",
}
"""The pages with Python, and what it prints."""


@pytest.mark.parametrize("page", PRINTED)
def test_the_programs_of_a_page(page: str, tmp_path: Path) -> None:
    printed = "".join(run(code, tmp_path) for code in blocks(page))
    assert re.fullmatch(PRINTED[page], printed)


def test_no_page_is_left_out() -> None:
    pages = (path.relative_to(DOCS) for path in DOCS.glob("co[mn]*/*.md"))
    assert {str(page) for page in pages if blocks(str(page))} == PRINTED.keys()


@pytest.mark.parametrize(("column", "ttl"), [(3, 5.0), (4, 30.0), (5, 300.0)])
def test_the_times_of_a_lease_are_those_of_the_code(column: int, ttl: float) -> None:
    lines = (DOCS / "concepts/time.md").read_text("utf-8").splitlines()
    rows = (line.split("|") for line in lines if line.startswith("| ") and line.count("|") == 6)
    shown = {row[1].strip(): row[column].split() for row in rows if row[1].strip()}
    times = [renew_after(ttl), margin(ttl), trusted(ttl), ttl]
    assert [float(value) for value, _ in shown.values()] == pytest.approx(times, rel=0.03)


def test_crontab_line_of_both_locks(tmp_path: Path) -> None:
    text = (DOCS / "coming-from/cron-flock.md").read_text("utf-8")
    (line,) = re.findall(r"`(flock .*/dibs run .*)`", text)
    line = line.replace("/run/lock/nightly", "old").replace("/usr/local/bin/nightly", "echo ran")
    dibs = Path(sys.executable).with_name("dibs")
    line = line.replace("/opt/dibs/bin/dibs", str(dibs))
    settings = {"DIBS_URL": f"sqlite:///{tmp_path}/leases.db"}

    def printed(command: str) -> str:
        how: Any = {"cwd": tmp_path, "env": os.environ | settings, "capture_output": True}
        done = subprocess.run(["sh", "-c", command], check=False, text=True, **how)
        assert not done.stderr
        return str(done.stdout)

    assert printed(line) == "ran\n"
    assert printed(f"flock old {line}") == "", "the old lock excludes it"
    assert printed(f"{dibs} run nightly {line}") == "", "so does the lock of Dibs"
