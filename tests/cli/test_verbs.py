"""`list`, `show`, `acquire`, `renew`, `release`, `revoke`: what they print, for people and for programs."""

import io
import json
import re
import shlex
import sys
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import click
import pytest

import dibs.sync
from dibs.cli.app import app
from dibs.cli.exits import FORBIDDEN, FREE, LOST, NOT_ACQUIRED, USAGE
from dibs.core.names import fingerprint
from dibs.stores.http.names import encoded
from dibs.sync import Client
from tests.cli.processes import LONG, Cli, Main, end, line
from tests.server.world import World, b64
from tests.servers.waiting import wait_until
from tests.stores.http.peers import Peer, answer

ODD = b"jobs/\xff\t"
HOLDER = {*("owner", "lease", "token", "units", "slots", "held_for", "expires_in", "note", "state")}
STATUS = {
    *("kind", "name", "held", "capacity", "holders", "holding", "used"),
    *("waiting", "waiters", "last_token"),
}

type Patch = pytest.MonkeyPatch


@pytest.fixture
def held(client: Client) -> Iterator[None]:
    with ExitStack() as stack:
        for name in (b"jobs/a", ODD, b"other"):
            stack.enter_context(client.lock(name, label="me", note="why not"))
        stack.enter_context(client.semaphore("pool", 2).acquire())
        yield


# ---- list and show --------------------------------------------------------------------------------


def test_show_reports_held_by_its_exit_code(verb: Main, client: Client) -> None:
    free = verb("show", "x", "--json")
    assert (free.code, set(free.objects[0])) == (FREE, STATUS)
    assert (free.objects[0]["held"], free.objects[0]["holders"]) == (False, [])
    with client.lock("x", ttl=20, note="why not") as lease:
        found = verb("show", "x")
        (status,) = verb("show", "x", "--json").objects
    assert found.code == 0
    assert found.out.startswith("lock x: held\n")
    assert lease.owner in found.out
    assert "why not" in found.out
    assert (status["kind"], status["name"], status["capacity"]) == ("lock", "x", 1)
    (holder,) = status["holders"]
    assert (set(status), set(holder)) == (STATUS, HOLDER)
    assert (holder["token"], holder["slots"], holder["state"]) == (lease.token, [0], "held")
    assert 0 < holder["expires_in"] <= 20


def test_list_by_prefix_and_kind(verb: Main, held: None) -> None:
    found = verb("list", "jobs/", "--json").objects
    assert [set(each) ^ STATUS for each in found] == [set(), {"name", "name_base64"}]
    assert (found[0]["kind"], found[0]["name"]) == ("lock", "jobs/a")
    assert len(verb("list", "--json", "--kind", "semaphore").objects) == 1
    head, *rows = verb("list").rows
    assert head == ["KIND", "NAME", "STATE", "EXPIRES IN", "WAITING"]
    assert [row[1] for row in rows] == ["jobs/a", "jobs/\\xff\\t", "other", "pool"]
    assert rows[-1][2].startswith("1 of 2: held by ")
    for word in ("--no-header", "--no-heading", "--no-headers"):
        assert [row[1] for row in verb("list", word).rows] == [row[1] for row in rows]


def test_names_in_base64(verb: Main, held: None) -> None:
    found = [row[1] for row in verb("list", "--no-decode", "--no-header").rows]
    assert found == [encoded(name) for name in (b"jobs/a", ODD, b"other", b"pool")]
    below = verb("list", "-B", encoded(b"jobs/"), "--no-header").rows
    assert [row[1] for row in below] == ["jobs/a", "jobs/\\xff\\t"]
    (other,) = verb("list", "--no-decode", "other", "--json").objects
    assert b64decode(other["name_base64"]) == b"other"
    assert verb("show", "-B", encoded(ODD)).rows[0] == ["lock jobs/\\xff\\t: held"]
    assert verb("show", "-B", encoded(b"\xff" * 512)).code == FREE
    for wrong in (["-B", "a b"], ["-B", encoded(b"\xff" * 513)], ["x" * 513]):
        assert verb("show", *wrong).code == USAGE


def test_a_name_is_found_under_the_only_kind_that_has_it(verb: Main, client: Client) -> None:
    with client.rwlock("x").write():
        assert ", writing, expires in" in verb("show", "x").out
        with client.semaphore("x", 2).acquire():
            unclear = verb("show", "x")
            assert unclear.code == USAGE
            assert "semaphore, rwlock" in unclear.err
            assert verb("show", "x", "--kind", "semaphore", "--json").objects[0]["capacity"] == 2
            assert verb("revoke", "x", "--reason", "which?").code == USAGE


def test_some_of_a_crowd_are_listed_and_all_are_counted(verb: Main, client: Client) -> None:
    pool = client.semaphore("pool", 200)
    with ExitStack() as leases:
        for _ in range(105):
            leases.enter_context(pool.acquire(units=1))
        assert "; and 102 more\t> " in verb("list", "pool").out
        assert verb("show", "pool").out.endswith("  and 5 more holding\n")
        (listed,) = verb("list", "pool", "--json").objects
    assert (len(listed["holders"]), listed["holding"], listed["used"]) == (100, 105, 105)


def test_ended_runs_of_tasks_are_hidden_and_others_shown_to_the_end(
    verb: Main, client: Client
) -> None:
    tick = "poll@2026-11-22T02:00:00Z"
    for name in (tick, "report"):
        with client.task_lock(name, min_hold=3000, max_hold=7200):
            assert name in verb("list").out
    (row,) = verb("list", "--no-header").rows
    assert row[1:3] == ["report", "retained after its last hold"]
    left = r"(50|49) min \d+ s"
    assert re.fullmatch(left, row[3])
    _, shown = verb("show", "report").out.splitlines()
    assert re.fullmatch(rf"  retained after its last hold, token \d+, free in {left}", shown)
    assert [row[1] for row in verb("list", "--no-header", "--all").rows] == [tick, "report"]


def test_looking_at_a_file_does_not_create_it(verb: Main, tmp_path: Path) -> None:
    file = tmp_path / "none" / "leases.db"
    url = ("--url", f"sqlite:///{file}")
    for words in (("show", "x"), ("revoke", "x", "--reason", "r"), ("list",), ("list", "--locks")):
        done = verb(*words, *url)
        assert done.code == (0 if words[0] == "list" else FREE)
        assert f"{file} does not exist" in done.err
    assert "none/leases.db does not exist; it is created at first use" in verb("doctor", *url).out
    assert not file.parent.exists()


def test_the_columns_of_lock_services(verb: Main, held: None) -> None:
    head, *rows = verb("list", "--locks").rows
    assert head == ["LOCK-NAME", "LOCK-ID", "CLIENT-ID", "CLIENT-IP", "TTL"]
    assert [row[0] for row in rows] == [encoded(name) for name in (b"jobs/a", ODD, b"other")]
    _, lock_id, client_id, ip, ttl = rows[0]
    assert (len(lock_id), ip) == (24, ""), "a fingerprint; only a service knows addresses"
    assert client_id.endswith("/me")
    assert 0 < int(ttl) <= 30
    below = verb("list", "--locks", "-D", "jobs/", "--no-header").rows
    assert [row[0] for row in below] == ["jobs/a", "jobs/\\xff\\t"]
    assert verb("list", "--locks", "jobs", "--no-header").rows == [], "a name, and no prefix"
    (found,) = verb("list", "--locks", "other", "--json").objects
    assert (set(found), set(found["info"])) == ({"name", "id", "info"}, {"ttl", "client-id", "ip"})
    assert verb("list", "--locks", "-D", "--json").code == USAGE


def test_the_columns_of_a_service(verb: Main, monkeypatch: Patch) -> None:
    with closing(World.over()) as world:
        monkeypatch.setenv("DIBS_URL", world.url)
        monkeypatch.setenv("DIBS_API_KEY", world.admin_key)
        params: dict[str, Any] = {"client-id": "c", "ttl": 60}
        held = world.client().post(f"/v1/locks/{b64('mine/one')}", params=params).json()
        (row,) = verb("list", "--locks", "--no-header", "-D").rows
        assert row[:4] == ["mine/one", fingerprint(held["id"]), "c", "127.0.0.1"]
        monkeypatch.setenv("DIBS_API_KEY", "dibs_" + "x" * 35)
        assert verb("list", "--locks").code == verb("list").code == FORBIDDEN


@pytest.mark.parametrize("words", [("events",), ("restrict", "list")])
def test_a_web_server_that_is_no_service(verb: Main, words: tuple[str, ...]) -> None:
    page = answer(200, b"<html></html>", kind="text/html", server=None)
    with Peer(lambda path, body: page) as peer:
        done = verb(*words, "--url", peer.url)
    assert (done.code, "is no Dibs service" in done.err) == (USAGE, True)


# ---- leases that outlive the command --------------------------------------------------------------


def acquired(verb: Main, *words: str) -> dict[str, Any]:
    done = verb("acquire", *words, "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = done.objects[0]
    return found


def holder_of(verb: Main, name: str) -> Any:
    (holder,) = verb("show", name, "--json").objects[0]["holders"]
    return holder


def test_acquire_renew_release(verb: Main) -> None:
    done = verb("acquire", "x", "--ttl", "60", "--client-id", "deploy 7", "--note", "rollout")
    assert (done.code, done.err) == (0, "")
    first, second = done.out.splitlines()
    lock_id, token = first.removeprefix("LOCK-ID: "), int(second.removeprefix("SEQUENCER: "))
    holder = holder_of(verb, "x")
    assert (holder["owner"], holder["note"], holder["token"]) == ("deploy 7", "rollout", token)
    renewed = verb("renew", "x", "--lock-id", lock_id, "--ttl", "2h")
    assert renewed.out.endswith(" (the store keeps it for 2 h 0 min)\n")
    assert holder_of(verb, "x")["expires_in"] > 7000
    assert verb("release", "x", "--lock-id", lock_id).out == "released x\n"
    assert verb("show", "x").code == FREE
    # the same as JSON, and by short names
    (held,) = verb("acq", "x", "-T", "60", "--owner", "me", "--json").objects
    assert held.keys() == {
        *("kind", "name", "lease_id", "token", "ttl", "expires_in", "slots"),
        *("lock_id", "sequencer"),
    }
    assert 0 < held["expires_in"] < held["ttl"] == 60
    (renewed,) = verb("renew", "x", "-L", held["lock_id"], "-T", "90", "--json").objects
    assert (renewed["renewed"], renewed["ttl"]) == (True, 90)
    assert verb("ls").out.count("lock\tx\t") == 1
    (released,) = verb("rl", "x", "-L", held["lease_id"], "--json").objects
    assert released == {"kind": "lock", "name": "x", "released": True}


def test_acquire_of_what_is_held_fails_unless_it_may_wait(cli: Cli, verb: Main) -> None:
    held = acquired(verb, "x", "--ttl", "60", "--client-id", "another")
    done = verb("acquire", "x", "--ttl", "60")
    assert (done.code, done.out) == (NOT_ACQUIRED, "")
    assert "x is held by another" in done.err
    late = verb("acquire", "x", "--ttl", "60", "--wait", "0.2s")
    assert (late.code, "gave up after 0.2 s" in late.err) == (NOT_ACQUIRED, True)
    waiter = cli.start("acquire", "x", "--ttl", "600", "--wait", "1h")
    wait_until(lambda: verb("show", "x", "--json").objects[0]["waiting"], "it waits")
    assert verb("release", "x", "--lock-id", held["lock_id"]).code == 0
    assert line(waiter).startswith("LOCK-ID: ")
    assert end(waiter)[0] == 0
    assert holder_of(verb, "x")["expires_in"] > 500, "its whole ttl"


def test_an_id_that_has_ended_is_reported_and_not_shown(verb: Main) -> None:
    held = acquired(verb, "x", "--ttl", "0.5s")
    after = acquired(verb, "x", "--ttl", "60", "--wait", f"{LONG}s")
    assert after["sequencer"] > held["sequencer"]
    for words in (("renew", "--ttl", "60"), ("release",)):
        done = verb(words[0], "x", "--lock-id", held["lock_id"], *words[1:])
        assert (done.code, done.out) == (LOST, "")
        assert held["lock_id"] not in done.err
    assert holder_of(verb, "x")["token"] == after["sequencer"]


def test_acquire_can_be_repeated_under_an_id(verb: Main, monkeypatch: Patch) -> None:
    own = "k" * 20 + "_-0Z"
    held = [acquired(verb, "x", "--ttl", "60", "--lock-id", own) for _ in range(2)]
    assert held[0]["lock_id"] == own
    assert held[0]["sequencer"] == held[1]["sequencer"]
    monkeypatch.setenv("DIBS_LOCK_ID", own)
    assert verb("renew", "x", "--ttl", "60").code == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{own}\n"))
    assert verb("release", "x", "--lock-id", "-").code == 0
    assert verb("show", "x").code == FREE


def test_units_and_names_of_any_bytes(verb: Main) -> None:
    several = ("gpu", "--ttl", "60", "--capacity", "4", "--units")
    held = acquired(verb, *several, "3")
    assert (held["kind"], len(held["slots"])) == ("semaphore", 3)
    assert verb("acquire", *several, "2").code == NOT_ACQUIRED
    acquired(verb, *several, "1")
    assert re.findall(r"slots? \S+\b", verb("show", "gpu").out) == ["slots 0,1,2", "slot 3"]
    by_id = ("gpu", "--lock-id", held["lock_id"])
    assert verb("renew", *by_id, "--ttl", "60", "--json").objects[0]["kind"] == "semaphore"
    assert verb("release", *by_id, "--kind", "lock").code == LOST
    assert verb("release", *by_id).code == 0
    held = acquired(verb, "_wA", "-B", "--ttl", "60")
    assert held["name_base64"] == "/wA="
    assert verb("release", "base64:_wA=", "--base64", "-L", held["lock_id"]).code == 0


def test_revoke(verb: Main, client: Client) -> None:
    assert verb("revoke", "x", "--reason", "none").code == FREE
    first, second = client.lock("x", ttl=20).acquire(), client.lock("y").acquire()
    (found,) = verb("revoke", "x", "--reason", "room", "--json").objects
    assert set(found) == {"kind", "name", "revoked", "ends_in"}
    assert found["revoked"] == 1
    assert 0 < found["ends_in"] <= 20
    assert "--now frees it at once" in verb("revoke", "y", "--reason", "room").out
    now = verb("revoke", "y", "--reason", "it hangs", "--now")
    assert (now.code, "may still be running" in now.err) == (0, True)
    assert verb("show", "y").code == FREE
    assert first.wait_lost(20)
    assert second.wait_lost(20)


# ---- options --------------------------------------------------------------------------------------


def verbs(command: click.Command = app, *path: str) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(("dibs", *path)), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from verbs(found, *path, name)


ALL = dict(verbs())


@pytest.mark.parametrize("path", ALL)
def test_the_examples_of_help_are_accepted(verb: Main, path: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(click.Command, "invoke", lambda command, context: None)  # parse, no more
    lines = (ALL[path].epilog or "").partition("Examples:\n")[2].splitlines()
    assert lines
    for text in lines:
        example = text.strip().partition("   ")[0].partition(" | ")[0]
        program, *words = shlex.split(example.removeprefix('eval "$(').removesuffix(')"'))
        assert (program, verb(*words).code) == ("dibs", 0)


def test_help_and_version(verb: Main) -> None:
    for words in (["--help"], ["-h"], ["--version"], ["list", "--help"], ["version"]):
        done = verb(*words)
        assert (done.code, "dibs" in done.out) == (0, True)
    (found,) = verb("version", "--json").objects
    assert verb("version").out == f"dibs {found['version']}\n"
    assert verb().code == USAGE


def test_the_store_is_named_before_the_verb_or_after_it(
    verb: Main, client: Client, tmp_path: Path, monkeypatch: Patch
) -> None:
    url = f"sqlite:///{tmp_path / 'reports.db'}"
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", url)
    with dibs.sync.connect(url) as reports, reports.lock("x"):
        for place in (["--store", "reports"], ["--url", url]):
            assert verb(*place, "show", "x").code == verb("show", "x", *place).code == 0
            assert verb("show", "x").code == FREE
            assert verb("doctor", *place).out.startswith(f"{url}\n")


USAGE_ERRORS = {
    # what is missing
    "run x": "dibs run NAME [OPTIONS] -- CMD [ARGS]...",
    "run x --": "no command given",
    "renew x --ttl 9": "Missing option '-L' / '--lock-id'",
    "keys": "give a verb: ",
    # what is misspelt, and what other tools call it
    "lits": "Did you mean `dibs list`?",
    "ps": "No such command 'ps'. Use `dibs list`.",
    "run x --timeout 5 -- true": "Use --wait TIME.",
    "run --tll 3 y true": "--ttl",
    # the place of the command
    "run x -n true": "put -- before the command",
    "run -- x true": "NAME stands before --",
    "run --ttl soon x echo --json": "dibs: ttl is 'soon'",
    # values
    "run x --ttl 1ms -- true": "ttl",
    "run x --wait -1 -- true": "wait is '-1': it can't be negative",
    "run x --wait 1 --no-wait -- true": "give either",
    "run x --kind lock --capacity 2 -- true": "a lock has one holder",
    "acquire x --ttl 9 --units 2": "--units must not be more than --capacity",
    "acquire x --ttl 9 --lock-id short": "22 to 64 random characters",
    f"acquire x --ttl 9 --lock-id {'ä' * 22}": "letters, digits, - and _",
    "acquire ä -B --ttl 9": "the name must be URL-safe base64",
    "verify --seconds 0": "a second to a week",
    "verify --primitives lock,mutex": "there is no 'mutex'; give some of lock, semaphore",
    "demo --workers 0": "--workers",
    # the store
    "verify memory://": "a memory:// store only lives as long as this command",
    "list redis://me:hunter2@host/0": "give it with --url",
    "run POSTGRESQL://me:hunter2@h -- true": "give it with --url",
    "run x --url nonsense://me:hunter2@store/1 -- true": "nonsense",
    "run x --store redis://h -- true": "give a URL with --url",
    "serve --url redis://h": "No such option '--url'. Use --leases URL.",
    "--url redis://h version": "`dibs version` takes no --url",
    "--url a list --url sqlite:///x.db": "--url is given twice",
    "--store report list": "no store is named 'report' here: there are 'reports'",
    "--store reports list --url sqlite:///x.db": "give either --url or --store",
    # the help that is named
    "ls --kind": "\n  Try: dibs list --help\n",
}
"""Command lines that are wrong, and part of the message."""


@pytest.mark.parametrize("words", USAGE_ERRORS)
def test_usage_errors(verb: Main, words: str, monkeypatch: Patch) -> None:
    monkeypatch.delenv("DIBS_LOCK_ID", raising=False)
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", "sqlite:///reports.db")
    done = verb(*shlex.split(words))
    assert (done.code, done.out) == (USAGE, "")
    assert USAGE_ERRORS[words] in done.err
    assert len(done.err.splitlines()) <= 2
    assert "hunter2" not in done.err


def test_errors_of_settings_and_as_json(verb: Main, tmp_path: Path, monkeypatch: Patch) -> None:
    done = verb("show", "x", "--json", "--url", "nonsense://x")
    error = json.loads(done.err)
    assert (error["event"], error["exit_code"]) == ("error", done.code) == ("error", USAGE)
    file = tmp_path / "dibs.toml"
    file.write_text('[lock.cart]\nttl = "soon"\n')
    monkeypatch.setenv("DIBS_CONFIG", str(file))
    done = verb("run", "cart", "true")
    assert (done.code, done.err.count("'soon'")) == (USAGE, 1)
    assert f"{file}: [lock.cart] ttl is 'soon': write it as" in done.err
    assert "--help" not in done.err, "the command line is right"
