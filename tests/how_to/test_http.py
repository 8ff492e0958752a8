"""How to take a lock from any language: the programs of the page, beside a real `dibs serve`."""

import re
import shutil
from collections.abc import Iterator

import pytest

from dibs.sync import Client, connect
from tests.cli.processes import line
from tests.how_to.programs import Programs, programs_of
from tests.servers.binaries import MissingServer
from tests.servers.ports import HOST
from tests.servers.waiting import wait_until
from tests.stores.http.processes import DibsServer

COMPILED = 200.0
"""Seconds: Go compiles its standard library the first time."""

pytestmark = [programs_of("http"), pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DibsServer]:
    folder = tmp_path_factory.mktemp("server")
    with DibsServer(folder, f"sqlite:///{folder}/leases.db") as server:
        yield server


@pytest.fixture
def client(server: DibsServer, programs: Programs, command: str) -> Iterator[Client]:
    """A client of the service that the programs use."""
    if not shutil.which(command.split(maxsplit=1)[0]):
        raise MissingServer(f"there is no {command.split(maxsplit=1)[0]}: install it")
    programs.environment |= {
        "DIBS_URL": f"http://{HOST}:{server.port}",
        "DIBS_API_KEY": server.key,
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-trimpath",
    }
    with connect(server.url) as client:
        yield client


@pytest.mark.parametrize(
    ("command", "work", "shorter"),
    [
        ("sh lock.sh", "sleep 2", "sleep 0"),
        ("node lock.mjs", "sleep(2000", "sleep(1"),
        ("go run lock.go", "2 * time.Second", "time.Millisecond"),
    ],
)
def test_it_waits_works_and_releases(
    command: str, work: str, shorter: str, programs: Programs, client: Client
) -> None:
    programs.edit(command.rsplit(maxsplit=1)[-1], work, shorter)
    lock = client.lock("jobs/nightly")
    with lock as lease:
        late = programs.shell(command)
        wait_until(lambda: lock.status().waiting or late.poll(), "it waits", within=COMPILED)
        assert late.poll() is None, late.communicate()
        lease.release()
        out, err = late.communicate(timeout=COMPILED)
    assert (late.returncode, err) == (0, "")
    assert "working" in out
    assert int(re.findall(r"\d{16}", out)[0]) > lease.token
    assert not lock.locked()


@pytest.mark.parametrize(
    ("command", "work", "longer"),
    [
        ("node lock.mjs", "sleep(2000", "sleep(90000"),
        ("go run lock.go", "2 * time.Second", "90 * time.Second"),
    ],
)
def test_it_stops_if_its_lease_is_lost(
    command: str, work: str, longer: str, programs: Programs, client: Client
) -> None:
    programs.edit(command.rsplit(maxsplit=1)[-1], "ttl = 30", "ttl = 6")
    programs.edit(command.rsplit(maxsplit=1)[-1], work, longer)
    holder = programs.shell(command)
    assert "working" in line(holder)
    client.lock("jobs/nightly").revoke(reason="a test", now=True)
    out, err = holder.communicate(timeout=COMPILED)
    assert (holder.returncode, out) == (1, "")
    assert "stopped: " in err
    assert "the lease was revoked: a test" in err
