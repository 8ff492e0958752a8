"""How to move locks to another store while they are in use."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dibs.sync import connect
from tests.cli.processes import end
from tests.how_to.programs import Programs, line_with, programs_of
from tests.servers.waiting import wait_until

pytestmark = [programs_of("move"), pytest.mark.slow]

SERVE = """
import sys
from dibs.cli import main
from dibs.server.placement import drain, table

drain.FRESH_ALONE = table.FRESH_ALONE = 1.0
sys.exit(main())
"""
"""`dibs`, with less to be waited for before the first move of a service that had one store."""


@contextmanager
def serving(programs: Programs, options: str) -> Iterator[str]:
    """A service that all commands use meanwhile: its URL, with the key."""
    (programs.folder / "dibs_server.py").write_text(SERVE)
    programs.environment["DIBS_SERVER_PLACEMENT_FRESH"] = "1s"
    server = programs.shell(f"python dibs_server.py serve --json --listen 127.0.0.1:0 {options}")
    listening = json.loads(line_with("listening", server))
    programs.environment["DIBS_URL"] = listening["url"]
    if "first_key" in listening:
        programs.environment["DIBS_API_KEY"] = listening["first_key"]
    yield listening["url"].replace("//", f"//{programs.environment['DIBS_API_KEY']}@")
    server.terminate()
    end(server)


def dibs(programs: Programs, words: str) -> tuple[int, str]:
    """Its exit code and output."""
    code, out, _ = end(programs.shell(f"dibs {words}"))
    return code, out.strip()


def test_a_directory_in_use_moves(programs: Programs) -> None:
    programs.edit("worker.py", "range(20)", "range(10_000)")  # it does not end by itself
    with (
        serving(programs, "--config server.toml") as url,
        connect(url) as client,
        client.lock("shop/long") as lease,
    ):
        worker = programs.shell("python worker.py")

        def next_token() -> int:
            return int(re.findall(r"job \d+, token (\d+)", line_with("token", worker))[0])

        tokens = [next_token()]
        assert dibs(programs, "move shop/ --to new --yes")[0] == 0
        wait_until(lambda: dibs(programs, "run -n shop/other true")[0] == 69, "it drains")
        shown = dibs(programs, "move shop/")[1]
        assert shown.startswith("shop/ moves from old to new once it is idle")
        lease.ensure()
        lease.release()
        assert dibs(programs, "move shop/ --wait") == (0, "shop/ lives at new")
        while tokens[-1] - tokens[0] < 70 * 60 * 1e6:  # until one is from the new store
            tokens.append(next_token())
        worker.terminate()
        assert end(worker)[2] == ""
    assert tokens == sorted(set(tokens))


def test_a_service_with_one_store_gets_a_second(programs: Programs) -> None:
    with serving(programs, "--leases sqlite:///leases.db"):
        acquired = json.loads(dibs(programs, "acquire shop/stock --ttl 5m --json")[1])
    with serving(programs, "--config second.toml"):
        programs.environment["DIBS_LOCK_ID"] = acquired["lease_id"]
        assert dibs(programs, "renew shop/stock --ttl 5m")[0] == 0
        assert dibs(programs, "release shop/stock")[0] == 0
        assert dibs(programs, "move / --to new --wait --yes") == (0, "/ lives at new")
