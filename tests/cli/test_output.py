"""Standard streams that are closed or full, messages during a wait: interrupts and outages."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

import pytest

from dibs.cli.output import Messages
from dibs.cli.waiting import WaitProgress
from dibs.locks.waiting import Waiting
from dibs.sync import Client, connect
from dibs.testing import FaultProxy
from tests.cli.processes import DIBS, LONG, PYTHON, Cli, Main, end, line
from tests.runtime.interrupting import at_bytecodes

UNWRITTEN = 74


def redirected(cli: Cli, redirection: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return cli(*words, program=["sh", "-c", f'exec "$@" {redirection}', "sh", *DIBS])


def test_a_full_stdout_is_reported(cli: Cli, client: Client) -> None:
    for words in (("list", "--json"), ("--version",)):
        with client.lock("x"):
            done = redirected(cli, ">/dev/full", *words)
        assert done.returncode == UNWRITTEN
        (message,) = done.stderr.splitlines()
        assert "cannot write to stdout: No space left on device" in message


def test_a_stdout_that_nobody_reads_is_no_traceback(cli: Cli) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = cli("acquire", "x", "--ttl", "60", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + 13, "")
    assert not cli.status("x").holders, "its id was lost"


def test_without_stdout_a_verb_succeeds_all_the_same(cli: Cli, client: Client) -> None:
    client.status("x")  # else `list` would say that there is no file
    for words in (("list",), ("run", "y", "--", "true")):
        done = redirected(cli, ">&-", *words)
        assert (done.returncode, done.stderr) == (0, "")


KEYS = ("keys", "create", "--name", "ci", "--scope", "read", "--records")


@pytest.mark.parametrize(("how", "code"), [(">/dev/full", UNWRITTEN), (">&-", 64)])
def test_a_secret_that_got_lost_is_not_kept(cli: Cli, verb: Main, how: str, code: int) -> None:
    acquired = redirected(cli, how, "acquire", "x", "--ttl", "1h")
    assert (acquired.returncode, "stdout" in acquired.stderr) == (code, True)
    assert not cli.status("x").holders
    created = redirected(cli, how, *KEYS, cli.url)
    assert created.returncode == code
    assert "It is shown only once" not in created.stderr
    lost = "the key would be lost" if code == 64 else "nobody has seen it, so it was revoked"
    assert lost in created.stderr
    assert verb("keys", "list", "--json", "--records", cli.url).out == ""


def test_a_command_never_starts_with_a_stream_closed(cli: Cli) -> None:
    """Else the first file it opens is its stdout, and is written over."""
    found = cli.folder / "found"
    look = (
        "import os, sys; open(sys.argv[1], 'w').write(str([os.stat(n).st_rdev for n in range(3)]))"
    )
    closed = "0>&- 1>&- 2>&-"
    assert redirected(cli, closed, "run", "y", "--", *PYTHON, look, str(found)).returncode == 0
    assert found.read_text() == str([os.stat(os.devnull).st_rdev] * 3)


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_its_extra_it_says_what_to_install(
    verb: Main, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = verb("version")
    assert (done.code, "dibs[cli]" in done.err) == (64, True)


# ---- messages while it waits ------------------------------------------------------------------------

NEWS = Waiting(b"lock:a", (), position=0, waiting=1, waited=0.0, estimate=None)


@pytest.mark.serial  # Ctrl-C is for the main thread, which a parallel worker needs for itself
def test_an_interrupt_at_any_bytecode_of_the_news_keeps_nobody_from_leaving() -> None:
    reporters: list[WaitProgress] = []

    def begin() -> Callable[[], None]:
        reporters.append(WaitProgress(Messages()).__enter__())
        return partial(reporters[-1].tell, NEWS)

    for at, _ in at_bytecodes(1, begin, least=5):
        leave = reporters.pop().__exit__
        leaving = threading.Thread(target=leave, args=(None, None, None), daemon=True)
        leaving.start()
        leaving.join(LONG)
        assert not leaving.is_alive(), f"stuck after an interrupt at bytecode {at}"


def test_an_outage_and_its_end_are_reported(cli: Cli, redis_url: str) -> None:
    address = urlsplit(redis_url)
    with (
        FaultProxy(address.hostname or "", address.port or 0) as way,
        connect(redis_url) as client,
        client.lock("a") as lease,
    ):
        environment = cli.environment | {
            "DIBS_URL": way.url_for(redis_url),
            "DIBS_CALL_TIMEOUT": "500ms",
        }
        watch = cli.start("watch", "a", "--json", "--every", "0.2", env=environment)
        waiter = cli.start("run", "a", "--json", "--", "echo", "mine", env=environment)
        assert json.loads(line(watch))["held"]
        assert json.loads(line(waiter, "stderr"))["event"] == "waiting"
        way.refuse()
        way.cut()
        for process in (watch, waiter):
            assert "still trying" in json.loads(line(process, "stderr"))["message"]
        way.heal()
        assert json.loads(line(watch, "stderr"))["event"] == "back"
        assert json.loads(line(waiter, "stderr"))["event"] == "waiting"
        lease.release()
        assert end(waiter)[:2] == (0, "mine\n")
