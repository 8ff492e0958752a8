"""How to take a lock from any language: the programs of the page, beside a real `dibs serve`."""

import re
import shutil
from collections.abc import Iterator

import pytest

from dibs.sync import Client, connect
from tests.how_to.programs import Programs
from tests.servers.binaries import MissingServer
from tests.servers.ports import HOST
from tests.servers.waiting import wait_until
from tests.stores.http.processes import DibsServer

PAGE = "how-to/http.md"
COMPILED = 200.0
"""Seconds: Go compiles its standard library the first time."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LANGUAGES = [("sh", "lock.sh"), ("node", "lock.mjs"), ("go run", "lock.go")]
WORK = {"lock.sh": "sleep 2", "lock.mjs": "sleep(2000", "lock.go": "2 * time.Second"}
"""What takes two seconds."""


@pytest.fixture(autouse=True)
def _is_there(command: str) -> None:
    if not shutil.which(command.partition(" ")[0]):
        raise MissingServer(f"there is no {command}: install it")


@pytest.fixture
def client(programs: Programs) -> Iterator[Client]:
    """A client of a service that the programs use."""
    with DibsServer(programs.folder, programs.url) as server, connect(server.url) as client:
        url = f"http://{HOST}:{server.port}"
        programs.environment |= {"DIBS_URL": url, "DIBS_API_KEY": server.key}
        programs.environment |= {"GOTOOLCHAIN": "local", "GOFLAGS": "-trimpath"}
        yield client


@pytest.mark.parametrize(("command", "name"), LANGUAGES)
def test_it_waits_works_and_releases(
    command: str, name: str, programs: Programs, client: Client
) -> None:
    programs.edit(name, WORK[name], WORK[name].replace("2", "1", 1))
    lock = client.lock("jobs/nightly")
    with lock as lease:
        late = programs.start(f"{command} {name}")
        wait_until(lambda: lock.status().waiting or late.poll(), "it waits", within=COMPILED)
        assert late.poll() is None, late.communicate()
        lease.release()
        out, err = late.communicate(timeout=COMPILED)
    assert (late.returncode, err) == (0, "")
    assert "working" in out
    assert int(re.findall(r"\d{16}", out)[0]) > lease.token
    assert not lock.locked()


@pytest.mark.parametrize(("command", "name"), LANGUAGES[1:])
def test_it_stops_if_its_lease_is_lost(
    command: str, name: str, programs: Programs, client: Client
) -> None:
    programs.edit(name, "ttl = 30", "ttl = 6")
    programs.edit(name, WORK[name], WORK[name].replace("2", "90", 1))
    holder = programs.start(f"{command} {name}")
    assert holder.stdout is not None
    assert "working" in holder.stdout.readline()
    client.lock("jobs/nightly").revoke(reason="a test")
    out, err = holder.communicate(timeout=COMPILED)
    assert (holder.returncode, out) == (1, "")
    assert "stopped: " in err
    assert "the lease was revoked: a test" in err
