"""`dibs keys`: beside the records, and through a running server."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import httpx2
import pytest

from dibs.cli.app import app
from dibs.cli.exits import needing
from dibs.cli.keys_local import LocalKeys
from dibs.errors import BackendUnavailable, DibsError, Forbidden, NotConfigured
from tests.server.world import World
from tests.servers.ports import free_port


class Line:
    """Runs command lines in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.code = 0
        self.out = self.err = ""

    def __call__(self, *args: str) -> str:
        """What is on stdout; the rest can be looked at."""
        self._capsys.readouterr()
        self.code = app.main(["keys", *args], "dibs", standalone_mode=False) or 0
        self.out, self.err = self._capsys.readouterr()
        return self.out

    def json(self, *args: str) -> Any:
        told = [json.loads(line) for line in self(*args, "--json").splitlines()]
        return told if args[0] == "list" else told[0]

    def fails[E: Exception](self, kind: type[E], *args: str) -> str:
        with pytest.raises(kind) as caught:
            self(*args)
        assert self._capsys.readouterr().out == ""
        error = caught.value
        return error.format_message() if isinstance(error, click.UsageError) else str(error)


@pytest.fixture(autouse=True)
def _no_settings_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a store of this machine's user."""
    for name in ("STORE", "RECORDS", "CONFIG"):
        monkeypatch.delenv(f"DIBS_SERVER_{name}", raising=False)
    for name in ("API_KEY", "API_KEY_FILE", "URL", "CONFIG"):
        monkeypatch.delenv(f"DIBS_{name}", raising=False)
    own = f"sqlite:///{tmp_path / 'own.db'}"
    monkeypatch.setattr("dibs.server.config.implicit_url", lambda: own)


@pytest.fixture
def line(capsys: pytest.CaptureFixture[str]) -> Line:
    return Line(capsys)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of records that the environment names."""
    url = f"sqlite:///{tmp_path / 'records.db'}"
    monkeypatch.setenv("DIBS_SERVER_RECORDS", url)
    return url


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World.over(tmp_path_factory.mktemp("keys"))
    yield world
    world.close()


@pytest.fixture(params=["beside the records", "through a server"])
def place(
    request: pytest.FixtureRequest, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, str]:
    """The option that says where keys are given out."""
    if request.param == "through a server":
        monkeypatch.setenv("DIBS_API_KEY", world.admin_key)
        return ("--server", world.url)
    return ("--records", f"sqlite:///{tmp_path / 'records.db'}")


# ---- the same in both places ----------------------------------------------------------------------


def test_a_key_is_made_listed_and_revoked(line: Line, place: tuple[str, str]) -> None:
    made = line.json("create", "--name", "ci", "--scope", "acquire", "--prefix", "shop/", *place)
    assert set(made) == {"id", "key", "name", "scopes", "prefixes", "expires_at", "url"}
    assert made["url"] == place[1]
    assert made["key"].startswith(f"dibs_{made['id']}_")
    assert (made["scopes"], made["prefixes"]) == (["read", "acquire"], ["shop/"])
    (listed,) = [key for key in line.json("list", *place) if key["id"] == made["id"]]
    assert (listed["name"], listed["good"], listed["revoked_at"]) == ("ci", True, None)
    assert made["key"] not in line.out
    gone = line.json("revoke", made["id"], *place)
    assert (gone["id"], gone["good"]) == (made["id"], False)
    assert made["id"] not in {key["id"] for key in line.json("list", *place)}
    assert made["id"] in {key["id"] for key in line.json("list", "--all", *place)}


def test_people_are_told_that_it_is_shown_once_and_how_to_use_it(
    line: Line, place: tuple[str, str]
) -> None:
    out = line("create", "--name", "people", "--scope", "read", "--prefix", "shop", *place)
    assert out.startswith("dibs_")
    assert len(out.split()) == 1
    for told in ("shown only once", "DIBS_API_KEY_FILE", "shop/", f" in {place[1]}:"):
        assert told in line.err
    assert "--prefix shop means the directory shop/" in line.err
    assert out.strip() not in line.err
    line("list", *place)
    head, *rows = [row.split("\t") for row in line.out.splitlines()]
    assert head == ["ID", "NAME", "SCOPES", "DIRECTORIES", "CREATED", "EXPIRES"]
    assert ["people", "read", "shop/"] in [row[1:4] for row in rows]
    assert line("revoke", "people", *place).startswith("revoked ")


def test_without_its_head(line: Line, place: tuple[str, str]) -> None:
    made = line.json("create", "--name", "headless", "--scope", "read", *place)
    with_head = line("list", *place).splitlines()
    assert line("list", "--no-header", *place).splitlines() == with_head[1:]
    assert made["id"] in line.out


def test_on_a_narrow_terminal_words_stay_whole(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ("--records", f"sqlite:///{tmp_path / 'records.db'}")
    life = ("--expires-in", "90d")
    made = line.json("create", "--name", "of somebody", "--scope", "admin", *life, *place)
    line("create", "--name", "ended", "--scope", "read", *life, *place)
    line("revoke", "ended", *place)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    shown = line("list", "--all", "--no-header", *place)
    assert max(map(len, shown.splitlines())) <= 80
    for word in ("read,", "acquire,", "force,", "admin", "(everything)", "revoked", made["id"]):
        assert word in shown.split()
    dates = [word for word in shown.split() if re.fullmatch(r"\d{4}-\d\d-\d\d", word)]
    assert len(dates) == 4, "both were made, one is good until then, and one was revoked"


def test_the_last_administrator_is_warned_of(line: Line, tmp_path: Path) -> None:
    place = ("--records", f"sqlite:///{tmp_path / 'records.db'}")
    for name, prefix in (("one", ()), ("other", ()), ("in shop", ("--prefix", "shop/"))):
        line("create", "--name", name, "--scope", "admin", *prefix, *place)
    line("revoke", "one", *place)
    assert line.err == ""
    line("revoke", "other", *place)
    assert "this was the last API key that administers everything" in line.err
    assert "dibs keys create --name admin --scope admin --records URL" in line.err
    line("revoke", "in shop", *place)
    assert line.err == ""


def test_directories_of_any_bytes(line: Line, place: tuple[str, str]) -> None:
    made = line.json(
        *("create", "--name", "bytes", "--scope", "read", "--scope", "force"),
        *("--prefix", "base64:_y8", "--prefix", "base64:_v8", "--prefix", "ü"),
        *place,
    )
    assert made["prefixes"] == ["ü/", "base64:_v8v", "base64:_y8"]
    assert made["scopes"] == ["read", "force"]


def test_a_key_for_some_time(line: Line, place: tuple[str, str]) -> None:
    made = line.json("create", "--name", "brief", "--scope", "read", "--expires-in", "90d", *place)
    assert made["expires_at"].endswith("Z")
    line("create", "--name", "briefer", "--scope", "read,acquire", "--expires-in", "12h", *place)
    assert ", until 20" in line.err


def test_what_is_not_there_is_not_revoked(line: Line, place: tuple[str, str]) -> None:
    for key in ("000000000000", "nothing", "a/b?c#d", "ü"):
        assert line("revoke", key, *place) == ""
        assert line.code == 1
        assert f"no key {key} in {place[1]}:" in line.err


def test_a_name_that_two_keys_have_is_not_enough(line: Line, place: tuple[str, str]) -> None:
    ids = [line.json("create", "--name", "two", "--scope", "read", *place)["id"] for _ in "ab"]
    told = line.fails(click.UsageError, "revoke", "two", *place)
    assert all(key_id in told for key_id in ids)
    line("revoke", ids[0], *place)
    assert line("revoke", "two", *place).startswith(f"revoked {ids[1]}")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--name", "", "--scope", "read"), "name"),
        (("--name", "a\nb", "--scope", "read"), "printable"),
        (("--name", "x" * 129, "--scope", "read"), "128"),
        (("--name", "a", "--scope", "god"), "there are read, acquire, force, admin"),
        (("--name", "a", "--scope", ","), "needs a scope"),
        (("--name", "a", "--scope", "read", "--prefix", ""), "leave it out for everything"),
        (("--name", "a", "--scope", "read", "--prefix", "/"), "leave it out for everything"),
        (("--name", "a", "--scope", "read", "--prefix", "x" * 513), "512 bytes"),
        (("--name", "a", "--scope", "read", "--prefix", "base64:=="), "base64"),
        (("--name", "a", "--scope", "read", "--expires-in", "soon"), "30s"),
        (("--name", "a", "--scope", "read", "--expires-in", "0s"), "1 s to 100 years"),
        (("--name", "a"), "--scope"),
        (("--scope", "read"), "--name"),
    ],
)
def test_nonsense_is_refused(
    line: Line, place: tuple[str, str], args: tuple[str, ...], told: str
) -> None:
    assert told in line.fails(click.UsageError, "create", *args, *place)


# ---- which place is meant, and that it is said ----------------------------------------------------


def test_the_service_that_the_settings_name_is_asked(
    line: Line, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_API_KEY", world.admin_key)
    monkeypatch.setenv("DIBS_URL", world.url)
    made = line.json("create", "--name", "by its variable", "--scope", "read")
    assert (made["url"], line.err) == (world.url, "")
    assert made["id"] in {key["id"] for key in line.json("list", "--server", world.url)}
    assert line("revoke", made["id"]).startswith("revoked ")
    monkeypatch.delenv("DIBS_URL")
    (tmp_path / "dibs.toml").write_text(f'url = "{world.url}"\n')
    monkeypatch.setenv("DIBS_CONFIG", str(tmp_path / "dibs.toml"))
    line("create", "--name", "by the file", "--scope", "read")
    assert f" in {world.url}:" in line.err


def test_url_is_another_word_for_server(
    line: Line, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_API_KEY", world.admin_key)
    url = ("--url", world.url)
    assert line.json("create", "--name", "url", "--scope", "read", *url)["url"] == world.url
    assert app.main(["restrict", "list", *url], "dibs", standalone_mode=False) == 0


def test_what_serve_has_here_comes_before_a_service_somewhere(
    line: Line, records: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_URL", f"http://127.0.0.1:{free_port()}")
    assert line.json("create", "--name", "here", "--scope", "read")["url"] == records
    monkeypatch.delenv("DIBS_SERVER_RECORDS")
    for option in ("--records", "--leases"):
        assert line.json("list", option, records)[0]["name"] == "here"


def test_where_nobody_says_where_it_is_said(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    assert line.json("create", "--name", "a", "--scope", "read")["url"] == url
    for verb in (("list",), ("revoke", "a")):
        line(*verb)
        assert f"using the keys in {url}" in line.err
        assert "--server" in line.err


def test_keys_go_by_the_store_that_the_settings_name(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    monkeypatch.setenv("DIBS_URL", url)
    assert line.json("create", "--name", "a", "--scope", "read")["url"] == url
    assert [key["name"] for key in line.json("list", "--records", url)] == ["a"]
    line("revoke", "a")
    assert "no records are named" not in line.err


def test_a_service_that_only_a_setting_names_may_not_be_meant(
    line: Line, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_URL", world.url)
    told = line.fails(Forbidden, "create", "--name", "a", "--scope", "read")
    assert "requires an API key" in told
    assert "DIBS_URL names this service; with access to its records, --records URL" in told
    assert "names this service" not in line.fails(Forbidden, "list", "--server", world.url)
    monkeypatch.setenv("DIBS_URL", f"http://127.0.0.1:{free_port()}")
    assert "--records URL" in line.fails(BackendUnavailable, "list")


def test_a_store_by_its_name(
    line: Line, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_API_KEY", world.admin_key)
    file = f"sqlite:///{tmp_path / 'named.db'}"
    monkeypatch.setenv("DIBS_STORES__SERVICE__URL", world.url)
    monkeypatch.setenv("DIBS_STORES__FILE__URL", file)

    def create(store: str, *place: str) -> int:
        words = ("keys", "create", "--name", "named", "--scope", "read", *place)
        return app.main(["--store", store, *words], "dibs", standalone_mode=False) or 0

    assert create("service") == 0
    assert "named" in {key["name"] for key in line.json("list", "--server", world.url)}
    assert create("file") == 0
    assert [key["name"] for key in line.json("list", "--records", file)] == ["named"]
    with pytest.raises(click.UsageError, match="in the settings"):
        create("nothing")
    with pytest.raises(click.UsageError, match="give either"):
        create("service", "--records", "sqlite:///never.db")


def test_no_secret_is_said_with_the_place(line: Line, world: World) -> None:
    url = world.url.replace("://", f"://{world.admin_key}@")
    made = line.json("create", "--name", "a", "--scope", "read", "--server", url)
    assert made["url"] == world.url.replace("://", "://***@")
    assert LocalKeys("postgresql://app:hunter2@db/x").place == "postgresql://app:***@db/x"


# ---- beside the records ---------------------------------------------------------------------------


def test_the_records_are_those_of_serve(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {name: f"sqlite:///{tmp_path / name}.db" for name in ("a", "b", "c")}
    for name, url in urls.items():
        line("create", "--name", name, "--scope", "read", "--records", url)
    config = tmp_path / "serve.toml"
    config.write_text(f'records = "{urls["a"]}"\nleases = "{urls["b"]}"\n')

    def name_of(*args: str) -> str:
        (key,) = line.json("list", *args)
        return str(key["name"])

    assert name_of("--config", str(config)) == "a"
    assert name_of("--config", str(config), "--records", urls["c"]) == "c"
    assert name_of("--leases", urls["b"]) == "b"
    monkeypatch.setenv("DIBS_SERVER_LEASES", urls["c"])
    assert name_of() == "c"
    monkeypatch.setenv("DIBS_SERVER_CONFIG", str(config))
    assert name_of() == "a"
    monkeypatch.setenv("DIBS_SERVER_RECORDS", urls["b"])
    assert name_of() == "b"


@pytest.mark.parametrize(
    ("url", "told", "kind"),
    [
        ("memory://", "only lives as long as this command", click.UsageError),
        ("temporal://host", "sqlite:", NotConfigured),
        ("nonsense", "sqlite:", NotConfigured),
        ("redis://app:hunter2@127.0.0.1:{port}", "can't be reached", BackendUnavailable),
        ("postgresql://app:hunter2@127.0.0.1:{port}/x", "can't be reached", BackendUnavailable),
    ],
)
def test_a_place_without_records(line: Line, url: str, told: str, kind: type[DibsError]) -> None:
    said = line.fails(kind, "list", "--records", url.format(port=free_port()))
    assert told in said
    assert "hunter2" not in said


def test_a_server_that_runs_takes_to_a_new_key(line: Line, world: World) -> None:
    made = line.json("create", "--name", "new", "--scope", "read", "--leases", world.config.leases)
    with httpx2.Client(base_url=world.url) as client:
        client.headers["authorization"] = f"Bearer {made['key']}"
        ends = _soon(lambda: client.get("/v1/locks").status_code == 200)
        assert ends
        line("revoke", made["id"], "--leases", world.config.leases)
        assert _soon(lambda: client.get("/v1/locks").status_code == 401)


def _soon(what: Callable[[], bool]) -> bool:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.02)
    return False


def test_who_did_it_stands_in_the_audit(line: Line, world: World) -> None:
    made = line.json(
        "create", "--name", "audited", "--scope", "read", "--leases", world.config.leases
    )
    line("revoke", made["id"], "--leases", world.config.leases)
    lines = world.client().get("/v1/audit").json()["entries"]
    found = [each for each in lines if each["detail"].get("id") == made["id"]]
    assert [each["what"] for each in found] == ["key revoked", "key created"]
    assert all(" at " in each["who"] and not each["key"] for each in found)
    assert made["key"] not in str(lines)


# ---- through a server -----------------------------------------------------------------------------


def test_the_key_may_stand_in_a_file(
    line: Line, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(f"{world.admin_key}\n")
    monkeypatch.setenv("DIBS_API_KEY_FILE", str(tmp_path / "key"))
    assert line.json("list", "--server", world.url)


def test_whoever_may_not_is_told_what_is_missing(
    line: Line, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ("create", "--name", "a", "--scope", "read", "--server", world.url)
    assert "DIBS_API_KEY" in line.fails(Forbidden, *create)
    monkeypatch.setenv("DIBS_API_KEY", world.key("acquire"))
    assert "admin" in line.fails(Forbidden, *create)
    monkeypatch.setenv("DIBS_API_KEY", world.key("admin", prefixes=[b"shop/"]))
    assert "prefixes" in line.fails(Forbidden, *create)
    assert "other/" in line.fails(Forbidden, *create, "--prefix", "other")
    assert line.json(*create, "--prefix", "shop/a")["prefixes"] == ["shop/a/"]


@pytest.mark.parametrize(
    ("url", "told", "kind"),
    [
        ("http://127.0.0.1:{port}", "can't be reached", BackendUnavailable),
        ("https://127.0.0.1:{port}", "can't be reached", BackendUnavailable),
        ("http://example.org", "in clear", NotConfigured),
        ("nonsense", "looks like https://", NotConfigured),
    ],
)
def test_a_server_that_is_none(line: Line, url: str, told: str, kind: type[DibsError]) -> None:
    assert told in line.fails(kind, "list", "--server", url.format(port=free_port()))


@pytest.mark.parametrize("other", ["--records", "--leases", "--config"])
def test_one_place_at_a_time(line: Line, other: str) -> None:
    told = line.fails(click.UsageError, "list", "--server", "https://x", other, "sqlite:///x.db")
    assert "--server" in told


def test_a_missing_package_is_said_with_what_installs_it() -> None:
    with (
        pytest.raises(NotConfigured, match=r"pip install 'dibs\[server\]'"),
        needing("server"),
    ):
        raise ModuleNotFoundError("no msgspec", name="msgspec")
    with pytest.raises(ModuleNotFoundError), needing("server"):
        raise ModuleNotFoundError("a bug of ours", name="dibs.nothing")


# ---- the process ----------------------------------------------------------------------------------


def test_failures_are_told_as_everywhere(records: str) -> None:
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dibs", "keys", *args],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    made = run("create", "--name", "ci", "--scope", "admin", "--json")
    assert (made.returncode, made.stderr) == (0, "")
    assert json.loads(made.stdout)["scopes"] == ["read", "acquire", "force", "admin"]
    wrong = run("create", "--name", "ci", "--scope", "god")
    assert (wrong.returncode, wrong.stdout) == (64, "")
    assert wrong.stderr.startswith("dibs: ")
    assert run("list", "--records", "temporal://x").returncode == 64
    assert run("revoke", "nothing", "--json").returncode == 1
