"""`list`, `show`, `acquire`, `renew`, `release`, `revoke`: what they print, for people and for programs."""

import json
import os
import shlex
import signal
import subprocess
import threading
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

import dibs.sync
from dibs.cli import options
from dibs.cli.app import app
from dibs.cli.exits import FORBIDDEN, FREE, LOST, NOT_ACQUIRED, USAGE
from dibs.core.names import fingerprint
from dibs.model import Acquire
from dibs.stores.http import wire
from dibs.stores.http.names import encoded
from dibs.stores.registry import BUILTIN, SPELLINGS
from dibs.sync import Client
from tests.cli.processes import DIBS, LONG, Cli, Main, end, line
from tests.server.world import World, b64
from tests.servers.waiting import wait_until

ODD = b"jobs/\xff\t"
OWN = "k" * 20 + "_-0Z"
HOLDER = {
    *("owner", "lease", "token", "units", "slots", "held_for", "expires_in", "note", "state"),
}
STATUS = {
    *("kind", "name", "held", "capacity", "holders", "holding", "used"),
    *("waiting", "waiters", "last_token"),
}


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
    assert set(status) == STATUS
    assert (status["kind"], status["name"], status["capacity"]) == ("lock", "x", 1)
    (holder,) = status["holders"]
    assert set(holder) == HOLDER
    assert (holder["token"], holder["slots"], holder["state"]) == (lease.token, [0], "held")
    assert 0 < holder["expires_in"] <= 20


def test_list_by_prefix_and_kind(verb: Main, held: None) -> None:
    found = verb("list", "jobs/", "--json").objects
    assert all(set(each) == STATUS - {"name"} | {"name_base64"} for each in found[1:])
    assert (found[0]["kind"], found[0]["name"], set(found[0])) == ("lock", "jobs/a", STATUS)
    assert len(verb("list", "--json").objects) == 4
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
    assert "name" not in other
    assert verb("show", "-B", encoded(ODD)).rows[0] == ["lock jobs/\\xff\\t: held"]
    shown = verb("show", "other", "--no-decode").rows[0]
    assert shown == [f"lock {encoded(b'other')}: held"]
    assert verb("show", "-B", encoded(b"\xff" * 512)).code == FREE
    for wrong in (["-B", "a b"], ["-B", encoded(b"\xff" * 513)], ["x" * 513]):
        assert verb("show", *wrong).code == USAGE


def test_a_name_is_found_under_the_only_kind_that_has_it(verb: Main, client: Client) -> None:
    with client.semaphore("x", 2).acquire():
        assert verb("show", "x", "--json").objects[0]["kind"] == "semaphore"
        with client.lock("x"):
            unclear = verb("show", "x")
            assert unclear.code == USAGE
            assert "lock, semaphore" in unclear.err
            assert verb("show", "x", "--kind", "semaphore", "--json").objects[0]["capacity"] == 2
            assert verb("revoke", "x", "--reason", "which?").code == USAGE


def test_some_of_a_crowd_are_listed_and_all_are_counted(verb: Main, client: Client) -> None:
    pool = client.semaphore("pool", 200)
    leases = [pool.acquire(units=1) for _ in range(105)]
    assert "; and 102 more\t> " in verb("list", "pool").out
    shown = verb("show", "pool").out
    (listed,) = verb("list", "pool", "--json").objects
    ended = verb("revoke", "pool", "--reason", "so").out
    for lease in leases:
        lease.release()
    assert ended == "revoked 105 leases of pool: free when the last of them ends\n"
    assert shown.endswith("  and 5 more holding\n")
    assert (len(listed["holders"]), listed["holding"], listed["used"]) == (100, 105, 105)


def test_show_says_who_writes(verb: Main, client: Client) -> None:
    with dibs.sync.connect(client.url) as other:
        reader = client.rwlock("x").read().acquire()
        assert "writ" not in verb("show", "x").out
        writing = threading.Thread(target=lambda: other.rwlock("x").write().acquire().release())
        writing.start()
        wait_until(lambda: client.rwlock("x").status().waiting, "a writer in line")
        assert "wants to write" in verb("show", "x").out
        reader.release()
        writing.join()
        with client.rwlock("x").write():
            found = verb("show", "x").out
    assert found.startswith("rwlock x: held\n")
    assert ", writing, expires in" in found


def test_finished_runs_of_scheduled_tasks_are_hidden(verb: Main, client: Client) -> None:
    tick = "poll@2026-11-22T02:00:00Z"

    def names(*words: str) -> list[str]:
        return [row[1] for row in verb("list", "--no-header", *words).rows]

    for name in (tick, "report"):
        with client.task_lock(name, "10m", "20m"):
            assert name in names()
    assert names() == ["report"]
    assert names("--all") == [tick, "report"]


def test_looking_at_a_file_does_not_create_it(verb: Main, tmp_path: Path) -> None:
    file = tmp_path / "none" / "leases.db"
    url = ("--url", f"sqlite:///{file}")
    for words in (("show", "x"), ("revoke", "x", "--reason", "r"), ("list",), ("list", "--locks")):
        done = verb(*words, *url)
        assert (done.code, done.out.strip()) == (
            0 if words[0] == "list" else FREE,
            done.out.strip(),
        )
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
    assert verb("list", "--locks", "jobs/", "--no-header", "--no-decode").rows == rows[:2]
    assert verb("list", "--locks", "jobs", "--no-header").rows == [], "a name, and no prefix"
    (found,) = verb("list", "--locks", "other", "--json").objects
    assert set(found) == {"name", "id", "info"}
    assert set(found["info"]) == {"ttl", "client-id", "ip"}
    assert verb("list", "--locks", "-D", "--json").code == USAGE
    assert verb("list", "--locks", "--kind", "semaphore").code == USAGE


@pytest.mark.once
def test_the_columns_of_a_service(verb: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page; ids of others' leases for administrators only."""

    def rows(*words: str) -> list[list[str]]:
        return verb("list", "--locks", "--no-header", *words).rows

    with closing(World.over()) as world:
        monkeypatch.setenv("DIBS_URL", world.url)
        monkeypatch.setenv("DIBS_API_KEY", world.admin_key)
        client = world.client()
        many = [f"dir/{number:03}" for number in range(230)]
        acquires = [
            wire.to_wire(Acquire(b"lock:" + name.encode(), f"{name:x>22}", "me", 60.0))
            for name in many
        ]
        answer = client.post("/v1/batch", content=msgspec.json.encode(wire.Batch(tuple(acquires))))
        assert answer.status_code == 200
        params: dict[str, Any] = {"client-id": "c", "ttl": 60}
        held = client.post(f"/v1/locks/{b64('mine/one')}", params=params).json()
        mine = ["mine/one", fingerprint(held["id"]), "c", "127.0.0.1"]
        assert [row[0] for row in rows("-D", "dir/")] == many
        assert len(rows()) == len(many) + 1
        assert [row[:4] for row in rows("-D", "mine/one")] == [mine]
        monkeypatch.setenv("DIBS_API_KEY", world.key("read", prefixes=[b"mine/"]))
        assert [row[:4] for row in rows("-D")] == [mine]
        assert rows("dir/") == []
        monkeypatch.setenv("DIBS_API_KEY", "dibs_" + "x" * 35)
        assert verb("list", "--locks").code == verb("list").code == FORBIDDEN


# ---- leases that outlive the command --------------------------------------------------------------


def acquired(verb: Main, *words: str) -> dict[str, Any]:
    done = verb("acquire", *words, "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = done.objects[0]
    return found


def holder_of(verb: Main, name: str) -> dict[str, Any]:
    (holder,) = verb("show", name, "--json").objects[0]["holders"]
    found: dict[str, Any] = holder
    return found


def is_held(verb: Main, name: str) -> bool:
    return verb("show", name).code == 0


def test_acquire_renew_release(verb: Main) -> None:
    done = verb("acquire", "x", "--ttl", "60", "--client-id", "deploy 7", "--note", "rollout")
    assert (done.code, done.err) == (0, "")
    first, second = done.out.splitlines()
    lock_id, token = first.removeprefix("LOCK-ID: "), int(second.removeprefix("SEQUENCER: "))
    holder = holder_of(verb, "x")
    assert (holder["owner"], holder["note"], holder["token"]) == ("deploy 7", "rollout", token)
    renewed = verb("renew", "x", "--lock-id", lock_id, "--ttl", "2h")
    assert (renewed.code, renewed.err) == (0, "")
    assert renewed.out.endswith(" (the store keeps it for 2 h 0 min)\n")
    assert holder_of(verb, "x")["expires_in"] > 7000
    released = verb("release", "x", "--lock-id", lock_id)
    assert (released.code, released.out) == (0, "released x\n")
    assert not is_held(verb, "x")


def test_the_same_as_json_and_by_short_names(verb: Main) -> None:
    held = acquired(verb, "x", "--ttl", "60")
    assert set(held) == {
        *("kind", "name", "lease_id", "token", "ttl", "expires_in", "slots"),
        *("lock_id", "sequencer"),
    }
    assert (held["lease_id"], held["token"]) == (held["lock_id"], held["sequencer"])
    assert 0 < held["expires_in"] < held["ttl"] == 60
    (renewed,) = verb("renew", "x", "-L", held["lock_id"], "-T", "90", "--json").objects
    assert (renewed["renewed"], renewed["ttl"]) == (True, 90)
    assert verb("ls").out.count("lock\tx\t") == 1
    (released,) = verb("rl", "x", "-L", held["lock_id"], "--json").objects
    assert released == {"kind": "lock", "name": "x", "released": True}
    assert verb("acq", "x", "-T", "9", "--owner", "me").out.startswith("LOCK-ID: ")
    assert holder_of(verb, "x")["owner"] == "me"


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


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_acquire_leaves_the_queue(cli: Cli, verb: Main, how: int) -> None:
    acquired(verb, "x", "--ttl", "60")
    waiter = cli.start("acquire", "x", "--ttl", "60", "--wait", "1h")
    wait_until(lambda: verb("show", "x", "--json").objects[0]["waiting"], "it waits")
    waiter.send_signal(how)
    code, out, err = end(waiter)
    expected = -how if how == signal.SIGINT else 128 + how
    assert (code, out, "Traceback" in err) == (expected, "", False)
    assert verb("show", "x", "--json").objects[0]["waiting"] == 0


def test_an_id_that_has_ended_is_reported_and_not_shown(verb: Main) -> None:
    held = acquired(verb, "x", "--ttl", "1s")
    after = acquired(verb, "x", "--ttl", "60", "--wait", f"{LONG}s")
    assert after["sequencer"] > held["sequencer"]
    for words in (("renew", "--ttl", "60"), ("release",)):
        done = verb(words[0], "x", "--lock-id", held["lock_id"], *words[1:])
        assert (done.code, done.out) == (LOST, "")
        assert held["lock_id"] not in done.err
    assert holder_of(verb, "x")["token"] == after["sequencer"]


def test_with_an_id_of_your_own_acquire_can_be_repeated(
    cli: Cli, verb: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [acquired(verb, "x", "--ttl", "60", "--lock-id", OWN) for _ in range(2)]
    assert held[0]["lock_id"] == OWN
    assert held[0]["sequencer"] == held[1]["sequencer"]
    monkeypatch.setenv("DIBS_LOCK_ID", OWN)
    assert verb("renew", "x", "--ttl", "60").code == 0
    assert cli("release", "x", "--lock-id", "-", input=f"{OWN}\n").returncode == 0
    assert not is_held(verb, "x")


def test_units_and_names_of_any_bytes(verb: Main) -> None:
    several = ("gpu", "--ttl", "60", "--capacity", "4", "--units")
    held = acquired(verb, *several, "3")
    assert (held["kind"], len(held["slots"])) == ("semaphore", 3)
    assert verb("acquire", *several, "2").code == NOT_ACQUIRED
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
    assert not is_held(verb, "y")
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


def examples(command: click.Command) -> list[str]:
    """The command lines in the epilog, without what explains them."""
    lines = (command.epilog or "").partition("Examples:\n")[2].splitlines()
    return [line.strip().partition("   ")[0] for line in lines]


def test_an_option_means_the_same_for_all_verbs() -> None:
    meanings: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for command in ALL.values():
        for option in command.params:
            names = (*option.opts, *option.secondary_opts)
            long = tuple(name for name in names if name.startswith("--"))
            for name in names:
                if len(name) == 2:
                    meanings[name].add(long)
                if name in ("--store", "--url"):
                    meanings[name].add((str(option.metavar),))
    assert {"-n", "-w", "-E", "-q", "-L", "-T"} <= meanings.keys()
    assert meanings["--store"] == {("NAME",)}
    assert {letter: found for letter, found in meanings.items() if len(found) > 1} == {}
    pages = {"http", "https"}  # a page's URL may well be a lock's name
    assert BUILTIN.keys() - pages | SPELLINGS.keys() == options.SCHEMES


@pytest.mark.parametrize("verb", ALL)
def test_the_examples_of_each_help_are_accepted(verb: str) -> None:
    assert examples(ALL[verb])
    for example in examples(ALL[verb]):
        plain = example.removeprefix('eval "$(').removesuffix(')"')
        words = shlex.split(plain.partition(" | ")[0])
        assert words.pop(0) == "dibs"
        command: click.Command = app
        with app.make_context("dibs", words) as context:
            rest = [*context._protected_args, *context.args]
            while isinstance(command, click.Group):
                name, found, rest = command.resolve_command(context, rest)
                assert found is not None
                command = found
                context = command.make_context(name, rest, parent=context)  # raises if it is wrong
                rest = [*context._protected_args, *context.args]


def test_help_and_version(verb: Main) -> None:
    for words in (["--help"], ["-h"], ["--version"], ["list", "--help"], ["version"]):
        done = verb(*words)
        assert (done.code, "dibs" in done.out) == (0, True)
    (found,) = verb("version", "--json").objects
    assert verb("version").out == f"dibs {found['version']}\n"
    assert verb().code == USAGE


def test_the_store_is_named_before_the_verb_or_after_it(
    verb: Main, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'reports.db'}"
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", url)
    with dibs.sync.connect(url) as reports, reports.lock("x"):
        for place in (["--store", "reports"], ["--url", url]):
            assert verb(*place, "show", "x").code == verb("show", "x", *place).code == 0
            assert verb("show", "x").code == FREE
            assert verb("doctor", *place).out.startswith(f"{url}\n")


def test_verify_knows_the_password_of_a_named_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", "redis://me:secret@localhost:1")
    with click.Context(click.Command("dibs")) as context:
        context.meta["store"] = "reports"
        assert options.full_url() == "redis://me:secret@localhost:1"


USAGE_ERRORS = {
    # what is missing
    "run x": "dibs run NAME [OPTIONS] -- CMD [ARGS]...",
    "run x --": "no command given",
    "run -n x": "no command given",
    "revoke x": "--reason",
    "acquire x": "Missing option '-T' / '--ttl'",
    "renew x --ttl 9": "Missing option '-L' / '--lock-id'",
    "keys create --name ci": "'--scope'. read, acquire, force",
    "keys": "give a verb: ",
    "restrict": "give a verb: ",
    "temporal": "give a verb: ",
    # what is misspelt, and what other tools call it
    "lits": "Did you mean `dibs list`?",
    "xyzzy": "No such command 'xyzzy'",
    "status x": "No such command 'status'. Use `dibs show`.",
    "ps": "No such command 'ps'. Use `dibs list`.",
    "top": "Use `dibs list --watch`.",
    "worker x": "Use `dibs temporal worker`.",
    "run x --timeout 5 -- true": "Use --wait TIME.",
    "run --tll 3 y true": "--ttl",
    # the place of the command
    "run x -n true": "put -- before the command",
    "run y --unheard-of true": "put -- before the command",
    "run -- x true": "NAME stands before --",
    # values
    "run x --ttl soon -- true": "soon",
    "run x --ttl 1ms -- true": "ttl",
    "run x --wait -1 -- true": "wait is '-1': it can't be negative",
    "run x --wait 1 --no-wait -- true": "give either",
    "run x --units 2 -- true": "--units",
    "run x --kind lock --capacity 2 -- true": "a lock has one holder",
    "acquire x --ttl 0": "ttl is 0 s",
    "acquire x --ttl 9 --wait x": "--wait: wait is 'x'",
    "acquire x --ttl 9 --units 2": "--units must not be more than --capacity",
    "acquire x --ttl 9 --lock-id short": "22 to 64 random characters",
    f"acquire x --ttl 9 --lock-id {'ä' * 22}": "letters, digits, - and _",
    "acquire ä -B --ttl 9": "the name must be URL-safe base64",
    # the store
    "list redis://me:hunter2@host/0": "give it with --url",
    "show POSTGRESQL://me:hunter2@host": "give it with --url",
    "revoke --reason r redis://me:hunter2@h": "give it with --url",
    "run redis://me:hunter2@h -- true": "give it with --url",
    "run x --url nonsense://me:hunter2@store/1 -- true": "nonsense",
    "run x --store redis://h -- true": "give a URL with --url",
    "run x --url postgresql+asyncpg://h -- true": "write postgresql://",
    "serve --store redis://h": "give a URL with --leases",
    "serve --url redis://h": "No such option '--url'. Use --leases URL.",
    "--url redis://h serve": "takes no --url. Use --leases URL.",
    "--url redis://h version": "`dibs version` takes no --url",
    "--url a list --url sqlite:///x.db": "--url is given twice",
    "--store report list": "no store is named 'report' here: there are 'reports'",
    "--store reports list --url sqlite:///x.db": "give either --url or --store",
    "move a/ --store a --url https://h": "give either --server or --store",
    # the help that is named
    "ls --kind": "\n  Try: dibs list --help\n",
    "restrict --nope": "\n  Try: dibs restrict --help\n",
    "--store": "\n  Try: dibs --help\n",
}
"""Command lines that are wrong, and part of the message."""


@pytest.mark.parametrize("words", USAGE_ERRORS)
def test_usage_errors(verb: Main, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIBS_LOCK_ID", raising=False)
    monkeypatch.setenv("DIBS_STORES__REPORTS__URL", "sqlite:///reports.db")
    done = verb(*shlex.split(words))
    assert (done.code, done.out) == (USAGE, "")
    assert USAGE_ERRORS[words] in done.err
    assert len(done.err.splitlines()) <= 2
    assert "hunter2" not in done.err


def test_errors_of_settings_and_as_json(
    verb: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = verb("show", "x", "--json", "--url", "nonsense://x")
    error = json.loads(done.err)
    assert (error["event"], error["exit_code"]) == ("error", done.code) == ("error", USAGE)
    with monkeypatch.context() as patch:
        patch.setenv("DIBS_REQUIRE", "cluster")
        patch.delenv("DIBS_URL")
        assert "DIBS_URL" in verb("show", "x").err, "the user's own file is no cluster's store"
    file = tmp_path / "dibs.toml"
    file.write_text('[lock.cart]\nttl = "soon"\n')
    monkeypatch.setenv("DIBS_CONFIG", str(file))
    done = verb("run", "cart", "true")
    assert (done.code, done.err.count("'soon'")) == (USAGE, 1)
    assert f"{file}: [lock.cart] ttl is 'soon': write it as" in done.err
    assert "--help" not in done.err, "the command line is right"


def test_a_name_that_is_no_utf_8(cli: Cli, verb: Main) -> None:
    name = b"\xff\x01x"
    command = [*map(os.fsencode, DIBS), b"run", name, b"--", b"sh", b"-c", b"echo held; read x"]
    holder = subprocess.Popen(
        command, env=cli.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert line(holder) == "held"
        (row,) = verb("list", "--json").objects
        assert b64decode(row["name_base64"]) == name
        assert cli("show", name).returncode == 0
        assert "\x01" not in verb("list").out
    finally:
        holder.communicate(timeout=LONG)
