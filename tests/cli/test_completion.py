"""Completion in shells, and misspelt environment variables."""

import select
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from dibs.cli.variables import misspelt
from dibs.sync import Client
from tests.cli.processes import Cli, Main, end

CONNECTING = 4.5
"""Seconds; without a limit of its own it would take 5 and more from when it has connected."""


def tab(cli: Cli, line: str, *, wait: float = 20, **environ: str) -> "subprocess.Popen[str]":
    """Ask what may stand at the end of this line, and wait so long for a store."""
    asked = {
        "_DIBS_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    patient = f"from dibs.cli import main, options; options.COMPLETION_WAIT = {wait}; main()"
    program = [sys.executable, "-c", patient]
    return cli.start(program=program, env=cli.environment | asked | environ)


def offered(asked: "subprocess.Popen[str]") -> set[str]:
    code, out, err = end(asked)
    assert (code, err) == (0, "")
    return {each.partition(",")[2] for each in out.splitlines() if each}


def test_verbs_options_and_names_in_use(cli: Cli, client: Client) -> None:
    assert offered(tab(cli, "dibs rele")) == {"release"}
    assert "--lock-id" in offered(tab(cli, "dibs release x --"))
    with ExitStack() as leases:
        for name in (b"jobs/a", b"jobs/b", b"other", b"two words", b"$(reboot)", b"\xff\x00"):
            leases.enter_context(client.lock(name))
        assert offered(tab(cli, "dibs show ")) == {"jobs/a", "jobs/b", "other"}
        assert offered(tab(cli, "dibs show --kind semaphore ")) == set()


def test_a_store_that_does_not_answer_is_not_waited_for(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        asks = tab(cli, "dibs show ", wait=2, DIBS_URL=url)
        while not select.select([silent], [], [], 0.01)[0]:
            if asks.poll() is not None:  # a slow machine may give up before it connects
                asks = tab(cli, "dibs show ", wait=2, DIBS_URL=url)
        connected = time.monotonic()
        assert offered(asks) == set()
        assert time.monotonic() - connected < CONNECTING


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(verb: Main, shell: str) -> None:
    script = verb("completion", shell).out
    assert f"_DIBS_COMPLETE={shell}_complete" in script
    found = shutil.which(shell)
    if found is not None:
        subprocess.run([found, "-n"], input=script, text=True, check=True)


MISSPELT = {
    "URLL": "URL",
    "LOCK__X__TLT": "LOCK__X__TTL",
    "LOK__X__TTL": "LOCK__X__TTL",
    "STORES__REPORTS__ULR": "STORES__REPORTS__URL",
}


def test_misspelt_variables_are_reported(verb: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, meant in MISSPELT.items():
        (warning,) = misspelt({f"DIBS_{variable}": "s3cret"})
        assert warning == f"ignored the unknown setting DIBS_{variable}. Did you mean DIBS_{meant}?"
    right = (
        *("URL", "TTL", "API_KEY", "CONFIG", "LOCK__X__TTL", "SERVER_LEASES"),
        *("TASKLOCK__X__MAX_HOLD", "LEADER__X__RENEW_DEADLINE", "STORES__A__CALL_TIMEOUT"),
        *("SERVICE_HOST", "PORT_443_TCP_ADDR", "VERSION", "USER"),  # somebody else's
    )
    assert not list(misspelt({f"DIBS_{each}": "x" for each in right}))
    monkeypatch.setenv("DIBS_LOCK__X__XYZ", "5")
    done = verb("version")
    assert (done.code, "ignored the unknown setting DIBS_LOCK__X__XYZ" in done.err) == (0, True)
