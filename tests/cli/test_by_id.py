"""`acquire`, `renew`, `release`: leases that outlive the command, by their id."""

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from tests.cli.processes import DIBS, LONG, Cli, end, line
from tests.servers.waiting import wait_until

OWN = "k" * 20 + "_-0Z"


def acquired(cli: Cli, *words: str) -> dict[str, Any]:
    done = cli("acquire", *words, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_acquire_renew_release(cli: Cli) -> None:
    done = cli("acquire", "x", "--ttl", "60", "--client-id", "deploy 7", "--note", "rollout")
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    lock_id, sequencer = first.removeprefix("LOCK-ID: "), int(second.removeprefix("SEQUENCER: "))
    (holder,) = cli.show("x")["holders"]
    assert (holder["owner"], holder["note"], holder["token"]) == ("deploy 7", "rollout", sequencer)
    renewed = cli("renew", "x", "--lock-id", lock_id, "--ttl", "2h")
    assert (renewed.returncode, renewed.stderr) == (0, "")
    assert "renewed x: you can rely on it for 1" in renewed.stdout
    assert renewed.stdout.endswith(" (the store keeps it for 2 h 0 min)\n")
    assert cli.show("x")["holders"][0]["expires_in"] > 7000
    released = cli("release", "x", "--lock-id", lock_id)
    assert (released.returncode, released.stdout) == (0, "released x\n")
    assert not cli.show("x")["held"]


def test_as_json_and_by_its_short_names(cli: Cli) -> None:
    held = acquired(cli, "x", "--ttl", "60")
    assert set(held) == {
        *("kind", "name", "lease_id", "token", "ttl", "expires_in", "slots"),
        *("lock_id", "sequencer"),
    }
    assert (held["lease_id"], held["token"]) == (held["lock_id"], held["sequencer"])
    assert 0 < held["expires_in"] < held["ttl"] == 60
    renewed = json.loads(cli("renew", "x", "-L", held["lock_id"], "-T", "90", "--json").stdout)
    assert (renewed["renewed"], renewed["ttl"]) == (True, 90)
    assert 60 < renewed["expires_in"] < 90
    assert cli("ls").stdout.count("lock\tx\t") == 1
    released = cli("rl", "x", "-L", held["lock_id"], "--json")
    assert json.loads(released.stdout) == {"kind": "lock", "name": "x", "released": True}
    assert cli("acq", "x", "-T", "9", "--owner", "me").stdout.startswith("LOCK-ID: ")
    assert cli.show("x")["holders"][0]["owner"] == "me"


def test_one_that_is_held_is_not_waited_for(cli: Cli) -> None:
    acquired(cli, "x", "--ttl", "60", "--client-id", "another")
    done = cli("acquire", "x", "--ttl", "60")
    assert (done.returncode, done.stdout) == (75, "")
    assert "x is held by another" in done.stderr
    late = cli("acquire", "x", "--ttl", "60", "--wait", "0.2s")
    assert late.returncode == 75
    assert "gave up after 0.2 s" in late.stderr
    assert cli.show("x")["waiting"] == 0


def test_it_waits_in_turn_and_has_its_whole_ttl(cli: Cli) -> None:
    held = acquired(cli, "x", "--ttl", "60")
    waiter = cli.start("acquire", "x", "--ttl", "600", "--wait", "1h")
    wait_until(lambda: cli.show("x")["waiting"], "it waits")
    assert cli("release", "x", "--lock-id", held["lock_id"]).returncode == 0
    assert line(waiter).startswith("LOCK-ID: ")
    code, _, err = end(waiter)
    assert (code, "held by" in err) == (0, True)
    assert cli.show("x")["holders"][0]["expires_in"] > 500


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_the_queue(cli: Cli, how: int) -> None:
    acquired(cli, "x", "--ttl", "60")
    waiter = cli.start("acquire", "x", "--ttl", "60", "--wait", "1h")
    wait_until(lambda: cli.show("x")["waiting"], "it waits")
    waiter.send_signal(how)
    code, out, err = end(waiter)
    expected = -how if how == signal.SIGINT else 128 + how
    assert (code, out, "Traceback" in err) == (expected, "", False)
    assert cli.show("x")["waiting"] == 0


def test_nothing_renews_it(cli: Cli) -> None:
    held = acquired(cli, "x", "--ttl", "1s")
    after = acquired(cli, "x", "--ttl", "60", "--wait", f"{LONG}s")
    assert after["sequencer"] > held["sequencer"]
    for words in (("renew", "--ttl", "60"), ("release",)):
        done = cli(words[0], "x", "--lock-id", held["lock_id"], *words[1:])
        assert (done.returncode, done.stdout) == (76, "")
        assert "nothing of x is held under this id: it has ended, or the id," in done.stderr
        assert held["lock_id"] not in done.stderr
    assert cli.show("x")["holders"][0]["token"] == after["sequencer"]


def test_an_id_of_ones_own_makes_it_safe_to_say_again(cli: Cli) -> None:
    held = acquired(cli, "x", "--ttl", "60", "--lock-id", OWN)
    assert held["lock_id"] == OWN
    assert acquired(cli, "x", "--ttl", "60", "--lock-id", OWN)["sequencer"] == held["sequencer"]
    environment = cli.environment | {"DIBS_LOCK_ID": OWN}
    assert cli("renew", "x", "--ttl", "60", env=environment).returncode == 0
    assert cli("release", "x", "--lock-id", "-", input=f"{OWN}\n").returncode == 0
    assert not cli.show("x")["held"]


def test_one_of_several(cli: Cli) -> None:
    held = acquired(cli, "gpu", "--ttl", "60", "--capacity", "4", "--units", "3")
    assert (held["kind"], len(held["slots"])) == ("semaphore", 3)
    assert cli("acquire", "gpu", "--ttl", "60", "--capacity", "4", "--units", "2").returncode == 75
    renewed = cli("renew", "gpu", "--lock-id", held["lock_id"], "--ttl", "60", "--json")
    assert json.loads(renewed.stdout)["kind"] == "semaphore"
    as_lock = cli("release", "gpu", "--lock-id", held["lock_id"], "--kind", "lock")
    assert as_lock.returncode == 76
    assert cli("release", "gpu", "--lock-id", held["lock_id"]).returncode == 0


def test_names_of_any_bytes(cli: Cli) -> None:
    held = acquired(cli, "_wA", "-B", "--ttl", "60")
    assert held["name_base64"] == "/wA="
    assert cli("renew", "base64:_wA=", "-B", "-L", held["lock_id"], "-T", "9").returncode == 0
    assert cli("release", "_wA", "--base64", "-L", held["lock_id"]).returncode == 0


def test_what_nobody_could_read_is_not_kept(cli: Cli) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(  # noqa: PLW1510 - its code is what is tested
        [*DIBS, "acquire", "x", "--ttl", "60"],
        env=cli.environment,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + 13, "")
    assert not cli.show("x")["held"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("acquire", "x"), "Missing option '-T' / '--ttl'"),
        (("acquire", "x", "--ttl", "soon"), "--ttl: ttl is 'soon': write it as"),
        (("acquire", "x", "--ttl", "0"), "ttl is 0 s"),
        (("acquire", "x", "--ttl", "9", "--wait", "x"), "--wait: wait is 'x'"),
        (
            ("acquire", "x", "--ttl", "9", "--units", "2"),
            "--units must not be more than --capacity",
        ),
        (("acquire", "x", "--ttl", "9", "--kind", "lock", "--capacity", "2"), "--kind lock"),
        (("acquire", "x", "--ttl", "9", "--lock-id", "short"), "22 to 64 random characters"),
        (("acquire", "x", "--ttl", "9", "--lock-id", "ä" * 22), "letters, digits, - and _"),
        (("acquire", "ä", "-B", "--ttl", "9"), "the name must be URL-safe base64"),
        (("renew", "x", "--ttl", "9"), "Missing option '-L' / '--lock-id'"),
        (("renew", "x", "--lock-id", OWN), "Missing option '-T' / '--ttl'"),
        (("release", "x", "--lock-id", "a b"), "letters, digits, - and _"),
    ],
)
def test_wrong_usage(cli: Cli, words: tuple[str, ...], told: str) -> None:
    done = cli(*words)
    assert (done.returncode, done.stdout) == (64, "")
    assert told in done.stderr
