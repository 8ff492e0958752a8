"""What the shell is helped with: completion, and misspelt environment variables."""

import shutil
import socket
import subprocess
import time

import pytest

from dibs.cli.app import misspelt
from tests.cli.processes import LONG, Cli

CONNECTING = 9.0
"""Seconds; without a limit of its own it would take 10."""


def offered(cli: Cli, line: str, **environ: str) -> set[str]:
    """What may stand at the end of this line."""
    asked = {
        "_DIBS_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = cli(env=cli.environment | asked | environ)
    assert (done.returncode, done.stderr) == (0, "")
    return {each.partition(",")[2] for each in done.stdout.splitlines() if each}


def test_verbs_and_options(cli: Cli) -> None:
    assert offered(cli, "dibs rele") == {"release"}
    assert {"renew", "revoke", "run"} <= offered(cli, "dibs r")
    assert "--lock-id" in offered(cli, "dibs release x --")
    assert offered(cli, "dibs show --kind rw") == {"rwlock"}


def test_names_in_use(cli: Cli) -> None:
    for name in ("jobs/a", "jobs/b", "other", "two words", "$(reboot)"):
        assert cli("acquire", name, "--ttl", "10m").returncode == 0
    assert cli("acquire", "_wA", "-B", "--ttl", "10m").returncode == 0

    def offers(line: str, wanted: set[str]) -> bool:
        return any(offered(cli, line) == wanted for _ in range(10))  # it waits for no slow machine

    assert offers("dibs release jobs/", {"jobs/a", "jobs/b"})
    assert offers("dibs show ", {"jobs/a", "jobs/b", "other"})
    assert offered(cli, "dibs show --kind semaphore ") == set()
    elsewhere = f"dibs show --url sqlite:///{cli.folder / 'other.db'} "
    assert offered(cli, elsewhere) == set()


@pytest.mark.once
def test_a_store_that_does_not_answer_is_not_waited_for(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(LONG)
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        begun = time.monotonic()
        assert offered(cli, "dibs show ", DIBS_URL=url) == set()
        took = time.monotonic() - begun
        silent.accept()[0].close()  # it was asked
    assert took < CONNECTING, "it went on for as long as a connection may take"
    assert offered(cli, "dibs show ", DIBS_URL="nonsense://") == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(cli: Cli, shell: str) -> None:
    done = cli("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_DIBS_COMPLETE={shell}_complete" in done.stdout
    found = shutil.which(shell)
    if found is not None:
        read = subprocess.run(
            [found, "-n"], input=done.stdout, text=True, capture_output=True, check=False
        )
        assert (read.returncode, read.stderr) == (0, "")


def test_a_shell_that_is_none(cli: Cli) -> None:
    assert cli("completion", "cmd").returncode == 64


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("URLL", "URL"),
        ("TLT", "TTL"),
        ("API_KY", "API_KEY"),
        ("LOCK__X__TLT", "LOCK__X__TTL"),
        ("LOK__X__TTL", "LOCK__X__TTL"),
        ("LEADER__X__RETRI", "LEADER__X__RETRY"),
        ("TASKLOCK__X__MIN_HOLDS", "TASKLOCK__X__MIN_HOLD"),
        ("STORES__REPORTS__ULR", "STORES__REPORTS__URL"),
    ],
)
def test_it_is_guessed_and_what_it_is_set_to_not_shown(variable: str, meant: str) -> None:
    (told,) = misspelt({f"DIBS_{variable}": "s3cret"})
    assert told == (f"ignored the unknown setting DIBS_{variable}. Did you mean DIBS_{meant}?")


def test_a_setting_of_one_lock_that_is_like_no_other() -> None:
    (told,) = misspelt({"DIBS_LOCK__X__XYZ": "red"})
    assert told == "ignored the unknown setting DIBS_LOCK__X__XYZ"


@pytest.mark.parametrize(
    "variable",
    [
        *("URL", "TTL", "API_KEY", "CONFIG", "CALL_TIMEOUT", "LOCK__X__TTL", "SERVER_LEASES"),
        *("TASKLOCK__X__MAX_HOLD", "LEADER__X__RENEW_DEADLINE", "STORES__A__CALL_TIMEOUT"),
        *("SERVICE_HOST", "PORT_443_TCP_ADDR", "VERSION", "USER"),
    ],
)
def test_what_is_a_setting_or_somebody_else_s_business(variable: str) -> None:
    assert not list(misspelt({f"DIBS_{variable}": "x", "URLL": "y"}))


@pytest.mark.once
def test_every_verb_says_so(cli: Cli) -> None:
    done = cli("version", env=cli.environment | {"DIBS_TLT": "5"})
    assert done.returncode == 0
    assert done.stderr == ("dibs: ignored the unknown setting DIBS_TLT. Did you mean DIBS_TTL?\n")
