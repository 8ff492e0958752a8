"""The page about services as it stands there, and the command line through one."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dibs.stores.http.url import FILE_VARIABLE, OPTIONS, VARIABLE
from tests.pages import DOCS, blocks, run
from tests.stores.http.serving import Served

pytestmark = [pytest.mark.multiprocess, pytest.mark.once]

PAGE = "https.md"
PRINTED = ("order 42 is paid, with token ", "slot 0 is ours\nlatency ")


@pytest.fixture
def settings(served: Served) -> dict[str, str]:
    """The environment of a program that uses the service below `jobs/`."""
    key = served.world.key("acquire", "read", prefixes=[b"jobs/"])
    return {"PATH": os.environ["PATH"], "DIBS_URL": served.world.url, VARIABLE: key}


def test_the_examples_work_and_every_option_is_named(
    settings: dict[str, str], tmp_path: Path
) -> None:
    for code, printed in zip(blocks(PAGE), PRINTED, strict=True):
        assert run(code, tmp_path, **settings).startswith(printed)
    for word in (*(f"{option}=" for option in OPTIONS), VARIABLE, FILE_VARIABLE):
        assert word in (DOCS / PAGE).read_text("utf-8"), "it names every option"


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl here")
def test_the_examples_for_the_shell_work(settings: dict[str, str], tmp_path: Path) -> None:
    """And another caller is refused as the page shows it."""

    def shell(lines: str) -> list[Any]:
        done = subprocess.run(
            ["/bin/sh", "-eu"],
            input=lines,
            env=settings,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert not done.stderr
        return [*map(json.loads, done.stdout.splitlines())]

    single, batch = blocks("http.md", "sh")
    shown_problem = json.loads(blocks("http.md", "json")[0])
    acquiring, rest = single.split("# acquire\n")
    other = 'curl -sS -w "\\n" -H "Authorization: Bearer $DIBS_API_KEY" -X POST "$lock"\n'
    held, refused, renewed, shown, released = shell(f"{acquiring}\n{other}{rest}")
    assert {"id", "sequencer", "ttl", "remaining"} <= held.keys()
    assert refused.keys() == shown_problem.keys()
    assert refused["holders"][0].keys() == shown_problem["holders"][0].keys()
    assert [refused[each] for each in ("type", "status")] == ["/problems/held", 409]
    assert renewed["ttl"] == 30
    assert shown["info"]["client-id"] == "ci-7"
    assert released == {"status": 200, "title": "Ok"}

    (answer,) = shell(batch)
    kinds = ["granted", "granted", "renewed", "status", "released", "released"]
    assert [each["is"] for each in answer["replies"]] == kinds
