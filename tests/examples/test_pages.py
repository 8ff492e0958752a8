"""The examples of pages of the documentation run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from dibs.sync import connect
from tests.pages import blocks, run

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
