"""What the command line says where people expect something else."""

import json
import os
import select
import subprocess
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from dibs.sync import connect
from dibs.testing import FaultProxy
from tests.cli.processes import Cli


@pytest.mark.parametrize("args", [("list",), ("show", "a"), ("list", "--locks")])
def test_a_look_at_a_file_that_is_not_there_says_so(
    cli: Cli, tmp_path: Path, args: tuple[str, ...]
) -> None:
    path = tmp_path / "typo" / "leases.db"
    done = cli(*args, "--url", f"sqlite:///{path}")
    assert f"{path} does not exist" in done.stderr
    assert not path.parent.exists()


@pytest.mark.parametrize("group", ["keys", "restrict", "temporal"])
def test_a_group_without_a_verb_names_its_verbs(cli: Cli, group: str) -> None:
    done = cli(group)
    assert done.returncode == 64
    assert done.stderr.startswith("dibs: give a verb: ")
    assert len(done.stderr.splitlines()) == 2


def test_a_misspelt_option_of_run_is_no_part_of_a_command(cli: Cli) -> None:
    told = cli("run", "--tll", "3", "y", "true").stderr
    assert "--ttl" in told
    assert "put -- before" not in told
    assert "put -- before" in cli("run", "y", "--unheard-of", "true").stderr


def test_a_wrong_setting_of_the_file_is_told_once(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "dibs.toml"
    file.write_text('[lock.cart]\nttl = "soon"\n')
    done = cli("run", "cart", "true", env=cli.environment | {"DIBS_CONFIG": str(file)})
    assert done.returncode == 64
    assert done.stderr.count("'soon'") == 1
    assert f"{file}: [lock.cart] ttl is 'soon': write it as" in done.stderr
    assert "--help" not in done.stderr, "the command line is right"


@pytest.mark.parametrize("verb", [("events",), ("watch", "a")], ids=lambda verb: verb[0])
def test_a_store_that_is_back_is_told(cli: Cli, redis_url: str, verb: tuple[str, ...]) -> None:
    address = urlsplit(redis_url)
    with FaultProxy(address.hostname or "", address.port or 0) as way:
        url = {"DIBS_URL": way.url_for(redis_url), "DIBS_CALL_TIMEOUT": "500ms"}
        tail = cli.start(*verb, "--json", "--every", "0.2", env=cli.environment | url)
        assert tail.stdout is not None
        assert tail.stderr is not None
        with connect(redis_url) as client:
            is_shown = False
            while not is_shown:  # until it has looked
                with client.lock(f"a/{uuid4()}").acquire():
                    is_shown = bool(select.select([tail.stdout], [], [], 0.5)[0])
        way.refuse()
        way.cut()
        assert "still trying" in json.loads(tail.stderr.readline())["message"]
        way.heal()
        assert json.loads(tail.stderr.readline())["event"] == "back"


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
