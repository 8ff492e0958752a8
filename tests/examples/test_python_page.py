"""The examples of the README and of docs/python.md run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from dibs.sync import connect
from tests.pages import blocks, run


@pytest.mark.parametrize(
    ("about", "printed"),
    [
        ("payment", "mine, with token "),
        ("on_wait=show", "mine\n"),
        ("client.list", "lock:order:42 "),
    ],
)
def test_an_example_of_the_python_page_runs(about: str, printed: str, tmp_path: Path) -> None:
    (code,) = (block for block in blocks("python.md") if about in block)
    assert run(code, tmp_path).startswith(printed)


def test_the_readme_runs(tmp_path: Path) -> None:
    (code,) = blocks("../README.md")
    printed = run(code, tmp_path)
    assert re.fullmatch(r"only one process is here, with token \d+\n", printed)


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
