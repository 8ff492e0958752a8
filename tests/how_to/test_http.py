"""How to take a lock from any language: the programs of the page, beside a real `dibs serve`."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from dibs.sync import Client, connect
from tests.pages import write_files
from tests.servers.binaries import MissingServer
from tests.servers.waiting import wait_until

pytestmark = [
    pytest.mark.once,
    pytest.mark.multiprocess,
    pytest.mark.slow,
    pytest.mark.timeout(300),  # Go compiles its standard library the first time
]

LANGUAGES = [("sh", "lock.sh"), ("node", "lock.mjs"), ("go run", "lock.go")]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a service that the programs use, which are in the current folder."""
    write_files("how-to/http.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    store = f"sqlite:///{tmp_path}/leases.db"
    serve = [sys.executable, "-m", "dibs", "serve", "--listen", "127.0.0.1:0", "--leases", store]
    with Popen(serve, stdout=PIPE, text=True) as server:
        assert server.stdout is not None
        key, url = (server.stdout.readline().split()[-1] for _ in range(2))
        monkeypatch.setenv("DIBS_URL", url)
        monkeypatch.setenv("DIBS_API_KEY", key)
        with connect(url) as client:
            yield client
        server.terminate()


def program(command: str, name: str) -> "Popen[str]":
    words = [*command.split(), name]
    if not shutil.which(words[0]):
        raise MissingServer(f"there is no {words[0]}: install it")
    environment = os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": ""}
    return Popen(words, stdout=PIPE, stderr=PIPE, text=True, env=environment)


@pytest.mark.parametrize(("command", "name"), LANGUAGES)
def test_it_waits_works_and_releases(command: str, name: str, client: Client) -> None:
    lock = client.lock("jobs/nightly")
    with lock as lease, program(command, name) as late:
        wait_until(lambda: late.poll() is not None or lock.status().waiting, "it waits", within=200)
        assert late.poll() is None, late.communicate()
        lease.release()
        out, err = late.communicate(timeout=100)
    assert (late.returncode, err) == (0, "")
    assert "working" in out
    assert int(re.findall(r"\d{16}", out)[0]) > lease.token
    assert not lock.locked()


@pytest.mark.parametrize(("command", "name"), LANGUAGES[1:])
def test_it_stops_if_its_lease_is_lost(command: str, name: str, client: Client) -> None:
    path = Path(name)
    text = path.read_text().replace("ttl = 30", "ttl = 9")
    path.write_text(text.replace("sleep(2000", "sleep(90_000").replace("2 * time", "90 * time"))
    with program(command, name) as holder:
        assert holder.stdout is not None
        assert "working" in holder.stdout.readline()
        client.lock("jobs/nightly").revoke(reason="a test")
        out, err = holder.communicate(timeout=60)
    assert (holder.returncode, out) == (1, "")
    assert "stopped: " in err
    assert "the lease was revoked: a test" in err
