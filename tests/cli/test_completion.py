"""Completion in shells, and misspelt environment variables."""

import select
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from dibs.cli.app import misspelt
from dibs.sync import Client
from tests.cli.processes import Cli, Main

CONNECTING = 9.0
"""Seconds; without a limit of its own it would take 10."""


def offered(cli: Cli, line: str, *, wait: float = 20, **environ: str) -> set[str]:
    """What may stand at the end of this line, if Tab waits so long for a store."""
    asked = {
        "_DIBS_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    patient = f"from dibs.cli import main, options; options.COMPLETION_WAIT = {wait}; main()"
    done = cli(program=[sys.executable, "-c", patient], env=cli.environment | asked | environ)
    assert (done.returncode, done.stderr) == (0, "")
    return {each.partition(",")[2] for each in done.stdout.splitlines() if each}


def test_verbs_options_and_names_in_use(cli: Cli, client: Client) -> None:
    assert offered(cli, "dibs rele") == {"release"}
    assert "--lock-id" in offered(cli, "dibs release x --")
    with ExitStack() as leases:
        for name in (b"jobs/a", b"jobs/b", b"other", b"two words", b"$(reboot)", b"\xff\x00"):
            leases.enter_context(client.lock(name))
        assert offered(cli, "dibs show ") == {"jobs/a", "jobs/b", "other"}
        assert offered(cli, "dibs show --kind semaphore ") == set()


def test_a_store_that_does_not_answer_is_not_waited_for(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        is_asked, took = False, 0.0
        while not is_asked:  # a slow machine may give up before it connects
            begun = time.monotonic()
            assert offered(cli, "dibs show ", wait=1, DIBS_URL=url) == set()
            took = time.monotonic() - begun
            is_asked = bool(select.select([silent], [], [], 0)[0])
    assert took < CONNECTING, "it went on for as long as a connection may take"


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
