"""`dibs keys`: beside the records, and through a running server."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from dibs.cli.app import app
from dibs.errors import BackendUnavailable, DibsError, Forbidden, NotConfigured
from tests.server.world import World
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until


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
    with World.over(tmp_path_factory.mktemp("keys")) as world:
        yield world


@pytest.fixture(params=["beside the records", "through a server"])
def place(
    request: pytest.FixtureRequest, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, str]:
    """The option that says where keys are given out."""
    if request.param == "through a server":
        monkeypatch.setenv("DIBS_API_KEY", world.admin_key)
        return ("--server", world.url)
    return ("--records", f"sqlite:///{tmp_path / 'records.db'}")


# -- the same in both places ------------------------------------------------------------------------


def test_a_key_is_made_listed_and_revoked(line: Line, place: tuple[str, str]) -> None:
    directories = ("--prefix", "shop/", "--prefix", "base64:_y8", "--prefix", "ü")
    life = ("--expires-in", "90d")
    made = line.json("create", "--name", "ci", "--scope", "acquire", *directories, *life, *place)
    assert set(made) == {"id", "key", "name", "scopes", "prefixes", "expires_at", "url"}
    assert made["url"] == place[1]
    assert made["key"].startswith(f"dibs_{made['id']}_")
    assert made["scopes"] == ["read", "acquire"]
    assert made["prefixes"] == ["shop/", "ü/", "base64:_y8"]
    assert made["expires_at"].endswith("Z")
    (listed,) = [key for key in line.json("list", *place) if key["id"] == made["id"]]
    assert (listed["name"], listed["good"], listed["revoked_at"]) == ("ci", True, None)
    assert made["key"] not in line.out
    gone = line.json("revoke", made["id"], *place)
    assert (gone["id"], gone["good"]) == (made["id"], False)
    assert made["id"] not in {key["id"] for key in line.json("list", *place)}
    assert made["id"] in {key["id"] for key in line.json("list", "--all", *place)}


def test_people_learn_that_it_is_shown_once_and_how_to_use_it(
    line: Line, place: tuple[str, str]
) -> None:
    create = ("create", "--name", "people", "--scope", "read,force", "--prefix", "shop")
    out = line(*create, "--expires-in", "12h", *place)
    assert out.startswith("dibs_")
    assert len(out.split()) == 1
    for word in ("shown only once", "DIBS_API_KEY_FILE", "shop/", f" in {place[1]}:", "until 20"):
        assert word in line.err
    assert "--prefix shop means the directory shop/" in line.err
    assert out.strip() not in line.err
    line("list", *place)
    head, *rows = [row.split("\t") for row in line.out.splitlines()]
    assert head == ["ID", "NAME", "SCOPES", "DIRECTORIES", "CREATED", "EXPIRES"]
    assert ["people", "read,force", "shop/"] in [row[1:4] for row in rows]
    assert line("list", "--no-header", *place).count("\n") == len(rows)
    assert line("revoke", "people", *place).startswith("revoked ")


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
    ("args", "why"),
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
def test_options_that_are_wrong(
    line: Line, place: tuple[str, str], args: tuple[str, ...], why: str
) -> None:
    assert why in line.fails(click.UsageError, "create", *args, *place)


# -- which place is meant ---------------------------------------------------------------------------


def test_records_are_found_in_this_order(
    line: Line, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("own", "a", "b", "c", "store")
    urls = {name: f"sqlite:///{tmp_path / name}.db" for name in names}
    for name, url in urls.items():
        line("create", "--name", name, "--scope", "read", "--records", url)
    config = tmp_path / "serve.toml"
    config.write_text(f'records = "{urls["a"]}"\nleases = "{urls["b"]}"\n')
    stores = ("--config", str(config))

    def name_of(*args: str) -> str:
        return str(line.json("list", *args)[0]["name"])

    assert name_of() == "own", "the local store"
    assert f"using the keys in {urls['own']}" in line.err
    monkeypatch.setenv("DIBS_URL", urls["store"])
    assert (name_of(), line.err) == ("store", "")
    monkeypatch.setenv("DIBS_API_KEY_FILE", str(tmp_path / "key"))
    (tmp_path / "key").write_text(f"{world.admin_key}\n")
    monkeypatch.setenv("DIBS_URL", world.url)
    assert name_of() == "first administrator"
    assert name_of("--leases", urls["c"]) == name_of("--records", urls["c"]) == "c"
    assert name_of(*stores) == "a"
    assert name_of(*stores, "--records", urls["c"]) == "c"
    assert name_of("--server", world.url) == name_of("--url", world.url) == "first administrator"
    monkeypatch.setenv("DIBS_SERVER_LEASES", urls["c"])
    assert name_of() == "c", "what serve has here, before a service somewhere"
    monkeypatch.setenv("DIBS_SERVER_CONFIG", str(config))
    assert name_of() == "a"
    monkeypatch.setenv("DIBS_SERVER_RECORDS", urls["b"])
    assert name_of() == "b"
    for other in ("--records", "--leases", "--config"):
        refused = line.fails(click.UsageError, "list", "--server", "https://x", other, "x")
        assert "--server" in refused


def test_a_named_store(
    line: Line, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_API_KEY", world.admin_key)
    file = f"sqlite:///{tmp_path / 'named.db'}"
    for store, url in (("SERVICE", world.url), ("FILE", file)):
        monkeypatch.setenv(f"DIBS_STORES__{store}__URL", url)

    def create(store: str, *place: str) -> None:
        words = ("keys", "create", "--name", "named", "--scope", "read", *place)
        assert not app.main(["--store", store, *words], "dibs", standalone_mode=False)

    create("service")
    create("file")
    for place in (("--server", world.url), ("--records", file)):
        assert "named" in {key["name"] for key in line.json("list", *place)}
    with pytest.raises(click.UsageError, match="in the settings"):
        create("nothing")
    with pytest.raises(click.UsageError, match="give either"):
        create("service", "--records", "sqlite:///never.db")


def test_no_secret_is_shown_with_the_place(line: Line, world: World) -> None:
    url = world.url.replace("://", f"://{world.admin_key}@")
    made = line.json("create", "--name", "a", "--scope", "read", "--server", url)
    assert made["url"] == world.url.replace("://", "://***@")


@pytest.mark.parametrize(
    ("option", "url", "why", "kind"),
    [
        ("--records", "memory://", "only lives as long as this command", click.UsageError),
        ("--records", "temporal://host", "sqlite:", NotConfigured),
        ("--records", "nonsense", "sqlite:", NotConfigured),
        ("--records", "redis://app:hunter2@{here}", "can't be reached", BackendUnavailable),
        ("--records", "postgresql://app:hunter2@{here}/x", "can't be reached", BackendUnavailable),
        ("--server", "http://{here}", "can't be reached", BackendUnavailable),
        ("--server", "https://{here}", "can't be reached", BackendUnavailable),
        ("--server", "http://example.org", "in clear", NotConfigured),
        ("--server", "nonsense", "looks like https://", NotConfigured),
    ],
)
def test_a_place_that_is_wrong_or_away(
    line: Line, option: str, url: str, why: str, kind: type[DibsError]
) -> None:
    refused = line.fails(kind, "list", option, url.format(here=f"127.0.0.1:{free_port()}"))
    assert why in refused
    assert "hunter2" not in refused


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


def test_a_running_server_learns_of_keys_and_writes_down_who_made_them(
    line: Line, world: World
) -> None:
    place = ("--leases", world.config.leases)
    made = line.json("create", "--name", "new", "--scope", "read", "--prefix", "shop", *place)
    client = world.client(key=made["key"])
    wait_until(lambda: client.get("/v1/locks").status_code == 200, "it is let in")
    line("revoke", made["id"], *place)
    wait_until(lambda: client.get("/v1/locks").status_code == 401, "it is revoked")
    lines = world.client().get("/v1/audit").json()["entries"]
    found = [each for each in lines if each["detail"].get("id") == made["id"]]
    assert [each["what"] for each in found] == ["key revoked", "key created"]
    assert all(" at " in each["who"] and not each["key"] for each in found)
    assert (found[1]["name"], found[1]["detail"]["scopes"]) == ("shop/", ["read"])
    assert made["key"] not in str(lines)


def test_what_a_key_lacks_is_named(
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


def test_exit_codes_are_those_of_other_commands(records: str) -> None:
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
