"""`dibs run` over a service that goes away: what it says before the loss, and of it."""

import json
from pathlib import Path
from signal import SIGTERM
from subprocess import PIPE

import pytest

from tests.cli.processes import Cli, end, line
from tests.server.inside import keys_of
from tests.server.world import World
from tests.servers.ports import free_port


@pytest.mark.once
@pytest.mark.parametrize("of", ["the server", "the key"])
def test_it_says_why_it_is_not_renewed_at_once_and_again_with_the_loss(
    tmp_path: Path, of: str
) -> None:
    cli, world = Cli(tmp_path), World.over(tmp_path)
    key = world.key("acquire")
    env = cli.environment | {"DIBS_URL": world.url, "DIBS_API_KEY": key}
    try:
        command = ("sh", "-c", "echo held; exec sleep 60")
        run = cli.start("run", "x", "--ttl", "3s", "--json", "--", *command, env=env)
        assert line(run) == "held"
        if of == "the key":
            world.do(lambda: keys_of(world).revoke(key.split("_")[1]))
        else:
            world.close()
        code, _, err = end(run)
    finally:
        cli.kill_all()
        world.close()
    told = [json.loads(each) for each in err.splitlines()]
    events = [each["event"] for each in told]
    assert (code, events[:2]) == (76, ["unavailable", "lost"])
    why = "does not accept the API key" if of == "the key" else "nobody listens there"
    assert why in told[0]["message"]
    assert why in told[1]["message"]


@pytest.mark.once
def test_what_the_service_never_grants_is_wrong_usage(tmp_path: Path) -> None:
    cli, world = Cli(tmp_path), World.over(tmp_path)
    env = cli.environment | {"DIBS_URL": world.url, "DIBS_API_KEY": world.admin_key}
    try:
        for asked in (
            ("run", "x", "--ttl", "2d", "--", "true"),
            ("acquire", "x", "--ttl", "2d"),
            ("acquire", "x", "--ttl", "0.1"),
        ):
            done = cli(*asked, env=env)
            assert (done.returncode, done.stdout) == (64, ""), done.stderr
            assert "`ttl` must be" in done.stderr
    finally:
        world.close()


@pytest.mark.once
def test_an_outage_is_told_to_those_in_line_and_the_end_of_their_wait_keeps_who_held_it(
    tmp_path: Path,
) -> None:
    cli, world = Cli(tmp_path), World.over(tmp_path)
    env = cli.environment | {"DIBS_URL": world.url, "DIBS_API_KEY": world.admin_key}
    try:
        holder = cli.hold("x", stdin=PIPE)  # in the store itself, which goes on
        wait = ("--wait", "7s", "--json")
        waiters = [
            cli.start("run", "x", *wait, "--", "true", env=env),
            cli.start("acquire", "x", "--ttl", "30s", *wait, env=env),
        ]
        for waiter in waiters:
            assert waiter.stderr is not None
            assert json.loads(waiter.stderr.readline())["event"] == "waiting"
        world.close()
        ended = [end(waiter) for waiter in waiters]
    finally:
        cli.kill_all()
        world.close()
    for code, out, err in ended:
        told = [json.loads(each) for each in err.splitlines()]
        assert (code, out) == (69, "")
        assert [each["event"] for each in told] == ["unavailable", "error"]
        assert all("nobody listens there" in each["message"] for each in told)
        (held,) = told[1]["holders"]
        assert f"/{holder.pid}/" in held["owner"]
        assert f"x was last held by {held['owner']} for " in told[1]["message"]


@pytest.mark.once
def test_acquire_says_that_nobody_is_there_while_it_tries_on(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    env = cli.environment | {"DIBS_URL": f"http://127.0.0.1:{free_port()}"}
    waiter = cli.start("acquire", "x", "--ttl", "30s", "--wait", "5m", "--json", env=env)
    try:
        assert waiter.stderr is not None
        told = json.loads(waiter.stderr.readline())
        assert (told["event"], "nobody listens there" in told["message"]) == ("unavailable", True)
        waiter.terminate()
        assert end(waiter)[0] == 128 + SIGTERM
    finally:
        cli.kill_all()
