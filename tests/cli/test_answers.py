"""`list`, `show`, `revoke` and `version`: what they answer, for people and for programs."""

import json
import os
import subprocess
import sys
import threading
import time
from base64 import b64decode

import pytest

import dibs.sync
from dibs.cli import options
from dibs.stores.registry import BUILTIN, SPELLINGS
from tests.cli.processes import DIBS, LONG, Cli, line

HOLDER = {
    "owner",
    "lease",
    "token",
    "units",
    "slots",
    "held_for",
    "expires_in",
    "note",
    "state",
}
STATUS = {
    *("kind", "name", "held", "capacity", "holders", "holding", "used"),
    *("waiting", "waiters", "last_token"),
}


def test_version(cli: Cli) -> None:
    plain = cli("version")
    told = json.loads(cli("version", "--json").stdout)
    assert plain.stdout == f"dibs {told['version']}\n"
    assert set(told) == {"version"}


@pytest.mark.parametrize("option", ["--version", "--help", "-h"])
def test_what_is_asked_of_the_whole_is_answered_well(cli: Cli, option: str) -> None:
    done = cli(option)
    assert done.returncode == 0
    assert "dibs" in done.stdout
    assert cli().returncode == 64


def test_show_tells_held_from_free_by_its_exit_code(cli: Cli) -> None:
    assert cli("show", "x").returncode == 1
    holder = cli.hold("x", "--note", "why not", stdin=subprocess.PIPE)
    held = cli("show", "x")
    assert held.returncode == 0
    assert held.stdout.startswith("lock x: held\n")
    assert f"/{holder.pid}" in held.stdout
    assert "why not" in held.stdout


def test_the_shape_of_show(cli: Cli) -> None:
    cli.hold("x", "--ttl", "20s", stdin=subprocess.PIPE)
    told = cli.show("x")
    assert set(told) == STATUS
    assert (told["kind"], told["name"], told["held"], told["capacity"]) == ("lock", "x", True, 1)
    (holder,) = told["holders"]
    assert set(holder) == HOLDER
    assert holder["token"] == told["last_token"]
    assert holder["slots"] == [0]
    assert 0 < holder["expires_in"] <= 20
    assert holder["state"] == "held"


def test_a_free_name_has_the_same_shape(cli: Cli) -> None:
    told = cli.show("x")
    assert set(told) == STATUS
    assert (told["held"], told["holders"], told["waiting"]) == (False, [], 0)


def test_list_has_one_object_a_line_and_knows_prefixes(cli: Cli) -> None:
    for name in ("jobs/a", "jobs/b", "other"):
        cli.hold(name, stdin=subprocess.PIPE)
    cli.hold("jobs/c", "--capacity", "2", stdin=subprocess.PIPE)
    rows = [json.loads(text) for text in cli("list", "jobs/", "--json").stdout.splitlines()]
    assert [(row["kind"], row["name"]) for row in rows] == [
        ("lock", "jobs/a"),
        ("lock", "jobs/b"),
        ("semaphore", "jobs/c"),
    ]
    assert all(set(row) == STATUS for row in rows)
    assert len(cli("list", "--json").stdout.splitlines()) == 4
    assert len(cli("list", "--json", "--kind", "semaphore").stdout.splitlines()) == 1
    plain = cli("list").stdout.splitlines()
    assert plain[0].split("\t") == ["KIND", "NAME", "STATE", "EXPIRES IN", "WAITING"]
    assert [text.split("\t")[1] for text in plain[1:]] == ["jobs/a", "jobs/b", "other", "jobs/c"]


def test_a_name_that_is_no_utf_8_goes_as_base64(cli: Cli) -> None:
    name = b"\xff\x00x".replace(b"\x00", b"\x01")
    holder = subprocess.Popen(
        [*map(os.fsencode, DIBS), b"run", name, b"--", b"sh", b"-c", b"echo held; read x"],
        env=cli.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert line(holder) == "held"
        (row,) = [json.loads(text) for text in cli("list", "--json").stdout.splitlines()]
        assert set(row) == STATUS - {"name"} | {"name_base64"}
        assert b64decode(row["name_base64"]) == name
        assert cli("show", name).returncode == 0
        assert "\x01" not in cli("list").stdout
    finally:
        holder.communicate(timeout=LONG)


@pytest.mark.parametrize(
    "words",
    ["list URL", "show URL", "revoke --reason r URL", "run URL -- true"],
)
def test_a_url_is_no_name(cli: Cli, words: str) -> None:
    for url in ("redis://me:geheim@host/0", "POSTGRESQL://host/db"):
        done = cli(*words.replace("URL", url).split())
        assert done.returncode == 64
        assert "give it with --url" in done.stderr
        assert "geheim" not in done.stderr
    assert cli("list", "http://").returncode == 0, "other names may look as they like"


def test_all_urls_are_known() -> None:
    pages = {"http", "https"}  # a page's URL may well be a lock's name
    assert BUILTIN.keys() - pages | SPELLINGS.keys() == options.SCHEMES


def test_an_ambiguous_name_needs_its_kind(cli: Cli) -> None:
    cli.hold("x", stdin=subprocess.PIPE)
    cli.hold("x", "--capacity", "2", stdin=subprocess.PIPE)
    unclear = cli("show", "x")
    assert unclear.returncode == 64
    assert "lock, semaphore" in unclear.stderr
    assert "--kind" in unclear.stderr
    assert cli.show("x", "--kind", "semaphore")["capacity"] == 2
    assert cli("revoke", "x", "--reason", "which?").returncode == 64


def test_a_name_is_found_under_the_only_kind_that_has_it(cli: Cli) -> None:
    cli.hold("x", "--capacity", "2", stdin=subprocess.PIPE)
    assert cli.show("x")["kind"] == "semaphore"


def test_to_look_at_a_file_does_not_make_it(cli: Cli) -> None:
    cli.url = f"sqlite:///{cli.folder}/none/leases.db"
    assert (cli("show", "x").returncode, cli("revoke", "x", "--reason", "r").returncode) == (1, 1)
    assert cli("list", "--json").stdout == ""
    assert "none/leases.db does not exist; it is created at first use" in cli("doctor").stdout
    assert not (cli.folder / "none").exists()


def test_revoke_tells_when_it_will_be_free(cli: Cli) -> None:
    assert cli("revoke", "x", "--reason", "none").returncode == 1
    cli.hold("x", "--ttl", "20s", stdin=subprocess.PIPE)
    cli.hold("y", stdin=subprocess.PIPE)
    assert "--now frees it at once" in cli("revoke", "y", "--reason", "room").stdout
    done = cli("revoke", "x", "--reason", "room", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 0
    assert set(told) == {"kind", "name", "revoked", "ends_in"}
    assert told["revoked"] == 1
    assert 0 < told["ends_in"] <= 20


def test_revoke_now_frees_at_once_and_warns_plainly(cli: Cli) -> None:
    cli.hold("x", stdin=subprocess.PIPE)
    done = cli("revoke", "x", "--reason", "it hangs", "--now")
    assert done.returncode == 0
    assert "may still be running" in done.stderr
    assert cli("run", "x", "--no-wait", "--", "true").returncode == 0


def test_errors_are_json_too(cli: Cli) -> None:
    done = cli("show", "x", "--json", "--url", "nonsense://x")
    told = json.loads(done.stderr)
    assert told["event"] == "error"
    assert told["exit_code"] == done.returncode == 64


@pytest.mark.parametrize("verb", ["run", "list", "show", "revoke", "version"])
def test_every_verb_has_help(cli: Cli, verb: str) -> None:
    done = cli(verb, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: dibs {verb}")
    assert verb in cli("--help").stdout


@pytest.mark.parametrize(
    ("words", "verb"),
    [
        ("run x --wait -- true", "run"),
        ("ls --kind", "list"),
        ("--store a list --no-header=3", "list"),
        ("keys create --name", "keys create"),
        ("restrict --nope", "restrict"),
        ("--store", ""),
    ],
)
def test_wrong_usage_names_the_help_of_its_verb(cli: Cli, words: str, verb: str) -> None:
    done = cli(*words.split())
    assert done.returncode == 64
    assert done.stderr.endswith(f"\n  Try: {' '.join(f'dibs {verb}'.split())} --help\n")


def test_a_reader_that_went_away_is_no_traceback(cli: Cli) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(  # noqa: PLW1510 - its code is what is tested
        [*DIBS, "version"],
        env=cli.environment,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + 13, "")


def test_without_a_store_named_the_users_own_is_taken_and_told(cli: Cli) -> None:
    bare = {k: v for k, v in cli.environment.items() if k != "DIBS_URL"}
    done = cli("show", "x", env=bare | {"DIBS_REQUIRE": "cluster"})
    assert done.returncode == 64
    assert "DIBS_URL" in done.stderr
    assert sys.executable  # the store itself is this user's: not touched by a test


@pytest.mark.parametrize(
    ("called", "ours"), [("status", "show"), ("ps", "list"), ("worker", "temporal worker")]
)
def test_what_other_tools_call_a_verb_is_told(cli: Cli, called: str, ours: str) -> None:
    done = cli(called, "x")
    assert done.returncode == 64
    assert f"No such command '{called}'. Use `dibs {ours}`." in done.stderr


def test_of_a_crowd_some_are_listed_and_all_are_counted(cli: Cli) -> None:
    with dibs.sync.connect(cli.url) as client:
        pool = client.semaphore("pool", 200)
        leases = [pool.acquire(units=1) for _ in range(105)]
        shown, listed = cli("show", "pool").stdout, cli("list", "pool", "--json").stdout
        table, ended = cli("list", "pool").stdout, cli("revoke", "pool", "--reason", "so").stdout
        for lease in leases:
            lease.release()
    assert "; and 102 more\t> " in table
    assert ended == "revoked 105 leases of pool: free when the last of them ends\n"
    assert shown.endswith("  and 5 more holding\n")
    assert len(shown.splitlines()) == 102
    told = json.loads(listed)
    assert (len(told["holders"]), told["holding"], told["used"]) == (100, 105, 105)


def test_readers_and_writers_are_told_apart(cli: Cli) -> None:
    with dibs.sync.connect(cli.url) as client, dibs.sync.connect(cli.url) as other:
        reader = client.rwlock("x").read().acquire()
        assert "writ" not in cli("show", "x").stdout
        writing = threading.Thread(target=lambda: other.rwlock("x").write().acquire().release())
        writing.start()
        while not client.rwlock("x").status().waiting:
            time.sleep(0.01)
        assert "wants to write" in cli("show", "x").stdout
        reader.release()
        writing.join()
        with client.rwlock("x").write():
            told = cli("show", "x").stdout
    assert told.startswith("rwlock x: held\n")
    assert ", writing, expires in" in told
