"""Standard streams that are closed, full, or that nobody reads; disks that are full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.sync import Client
from tests.cli.processes import DIBS, PYTHON, Cli

pytestmark = pytest.mark.once

UNWRITTEN = 74

GOOD = ("keys", "create", "--name", "ci", "--scope", "read")


def redirected(cli: Cli, redirection: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *DIBS, *words],
        env=cli.environment,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    [("list",), ("list", "--json"), ("show", "x"), ("--version",), ("list", "--help")],
    ids=" ".join,
)
def test_a_full_stdout_is_reported(cli: Cli, client: Client, words: tuple[str, ...]) -> None:
    with client.lock("x"):
        done = redirected(cli, ">/dev/full", *words)
    assert done.returncode == UNWRITTEN
    (message,) = done.stderr.splitlines()
    assert "cannot write to stdout: No space left on device" in message


def test_a_stdout_that_nobody_reads_is_no_traceback(cli: Cli) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for words in (("version",), ("acquire", "x", "--ttl", "60")):
        done = subprocess.run(
            [*DIBS, *words],
            env=cli.environment,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (128 + 13, "")
    os.close(writer)
    assert not cli.show("x")["held"], "its id was lost"


@pytest.mark.parametrize("words", [("list",), ("version",), ("run", "y", "--", "true")])
def test_without_stdout_a_verb_succeeds_all_the_same(cli: Cli, words: tuple[str, ...]) -> None:
    cli("run", "x", "--", "true")  # else `list` would say that there is no file
    done = redirected(cli, ">&-", *words)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_lease_id_that_cannot_be_read_is_not_kept(cli: Cli) -> None:
    for redirection, code in ((">/dev/full", UNWRITTEN), (">&-", 64)):
        done = redirected(cli, redirection, "acquire", "x", "--ttl", "1h")
        assert (done.returncode, "stdout" in done.stderr) == (code, True)
        assert not cli.show("x")["held"]


@pytest.mark.parametrize("how", [">/dev/full", "--json >/dev/full", ">&-", "| true"])
def test_a_key_that_cannot_be_read_is_not_kept(cli: Cli, how: str) -> None:
    place = ("--records", cli.url)
    json, _, redirection = how.rpartition(">")
    if how == "| true":
        process = cli.start(*GOOD, *place)
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(timeout=60)
    else:
        done = redirected(cli, f">{redirection}", *GOOD, *place, *json.split())
        assert done.returncode == (64 if how == ">&-" else UNWRITTEN)
        assert "It is shown only once" not in done.stderr
        err = done.stderr
    assert (
        "the key would be lost" if how == ">&-" else "nobody has seen it, so it was revoked"
    ) in err
    assert cli("keys", "list", "--json", *place).stdout == ""


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_command_never_starts_with_a_stream_closed(cli: Cli, number: int) -> None:
    """Else the first file it opens is its stdout, and is written over."""
    found = cli.folder / "found"
    look = f"import os, sys; open(sys.argv[1], 'w').write(str(os.stat({number}).st_rdev))"
    done = redirected(cli, f"{number}>&-", "run", "y", "--", *PYTHON, look, str(found))
    assert done.returncode == 0, done.stderr
    assert int(found.read_text()) == os.stat(os.devnull).st_rdev


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk_is_named(cli: Cli, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs can't be mounted here")
    try:
        url = f"sqlite:///{disk / 'leases.db'}"
        fill = f"cat /dev/zero > {disk / 'stuffing'} 2>/dev/null; true"
        done = cli("run", "--url", url, "a", "sh", "-c", fill)
        assert done.returncode == 0
        doctor = cli("doctor", url)
        assert (doctor.returncode, "PROBLEM" in doctor.stdout) == (1, True), doctor.stderr
        assert "disk" in doctor.stdout
        if "was not released" in done.stderr:  # the log may have had room for it
            assert "disk" in done.stderr
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_its_extra_it_says_what_to_install(package: str) -> None:
    missing = f"import sys; sys.modules[{package!r}] = None"
    program = f"{missing}; from dibs.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "dibs[cli]" in done.stderr) == (64, True)
