"""The command line through the service: what it says, and its exit codes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.stores.http.url import FILE_VARIABLE, OPTIONS, VARIABLE
from tests.pages import DOCS, blocks, run
from tests.stores.http.serving import Served

pytestmark = [pytest.mark.multiprocess, pytest.mark.once]


def cli(served: Served, key: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("DIBS_")}
    if key:
        env["DIBS_API_KEY"] = key
    return subprocess.run(
        [sys.executable, "-m", "dibs", *words],
        env=env | {"DIBS_URL": served.world.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_run_list_and_doctor(served: Served) -> None:
    key = served.world.key("acquire", prefixes=[b"cli/"])
    command = [sys.executable, "-m", "dibs", "list", "--json"]
    done = cli(served, key, "run", "cli/a", "--", *command)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["name"] == "cli/a"
    told = cli(served, key, "doctor")
    assert told.returncode == 0
    assert "scopes acquire, read below cli/" in told.stdout
    assert "use no ttl below 1 s" in told.stdout, "the service grants none below that"
    assert "none, and none needed: 127.0.0.1 is this machine" in told.stdout
    assert "ttl: this service grants 1 to 86400 seconds" in told.stdout


@pytest.mark.parametrize(
    ("key", "code", "told"),
    [
        ("", 77, "requires an API key: set DIBS_API_KEY"),
        ("dibs_no_0123456789012345678901", 77, "does not accept the API key from DIBS_API_KEY"),
        ("two words", 64, "is no API key"),
        ("nonsense", 77, "what DIBS_API_KEY has is no API key: one begins with dibs_"),
    ],
)
def test_a_key_that_is_none(served: Served, key: str, code: int, told: str) -> None:
    done = cli(served, key, "list")
    assert done.returncode == code
    assert told in done.stderr
    assert not key or key not in done.stderr


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
    lines, _ = blocks(PAGE, "sh")
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


@pytest.mark.multiprocess
@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl here")
def test_a_batch_by_curl(served: Served, tmp_path: Path) -> None:
    _, lines = blocks(PAGE, "sh")
    done = subprocess.run(
        ["/bin/sh", "-eu", "-c", lines],
        env={
            "PATH": os.environ["PATH"],
            "DIBS_URL": served.world.url,
            VARIABLE: served.world.key("acquire", prefixes=[b"jobs/"]),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    replies = json.loads(done.stdout)["replies"]
    kinds = ["granted", "granted", "renewed", "status", "released", "released"]
    assert [each["is"] for each in replies] == kinds, done.stdout
