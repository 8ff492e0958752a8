"""The examples of the page about `https://`, as they stand there; and it leaves no option out."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dibs.backends.http.apikey import FILE_VARIABLE, VARIABLE
from dibs.backends.http.url import OPTIONS
from tests.backends.http.serving import Served
from tests.pages import DOCS, blocks, run

PAGE = "https.md"
TOLD = ("order 42 is paid, with token ", "slot 0 is ours\nlatency ")


@pytest.mark.multiprocess
@pytest.mark.parametrize("number", range(2))
def test_an_example_works(number: int, served: Served, tmp_path: Path) -> None:
    key = served.world.key("acquire", prefixes=[b"jobs/"])
    settings = {"DIBS_URL": served.world.url, VARIABLE: key}
    assert run(blocks(PAGE)[number], tmp_path, **settings).startswith(TOLD[number])


def test_every_example_is_tried() -> None:
    assert len(blocks(PAGE)) == len(TOLD)


@pytest.mark.parametrize("word", [*(f"{option}=" for option in OPTIONS), VARIABLE, FILE_VARIABLE])
def test_every_option_is_told(word: str) -> None:
    assert word in (DOCS / PAGE).read_text("utf-8")


@pytest.mark.multiprocess
@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl here")
def test_what_curl_is_answered(served: Served, tmp_path: Path) -> None:
    """The lines as they stand there, in the shell that is everywhere; and what somebody else is told."""
    (lines,) = blocks(PAGE, "sh")
    (problem,) = blocks(PAGE, "json")
    acquiring, rest = lines.split("# acquire\n")
    other = 'curl -sS -w "\\n" -H "Authorization: Bearer $DIBS_API_KEY" -X POST "$lock"\n'
    done = subprocess.run(
        ["/bin/sh", "-eu"],
        input=f"{acquiring}\n{other}{rest}",
        env={
            "PATH": os.environ["PATH"],
            "DIBS_URL": served.world.url,
            VARIABLE: served.world.key("acquire", "read", prefixes=[b"jobs/"]),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    held, refused, renewed, shown, released = map(json.loads, done.stdout.splitlines())
    assert not done.stderr
    assert {"id", "sequencer", "ttl", "remaining"} <= held.keys()
    assert refused.keys() == json.loads(problem).keys()
    assert refused["holders"][0].keys() == json.loads(problem)["holders"][0].keys()
    assert [refused[each] for each in ("type", "status")] == ["/problems/held", 409]
    assert renewed["ttl"] == 30
    assert shown["info"]["client-id"] == "ci-7"
    assert released == {"status": 200, "title": "Ok"}
