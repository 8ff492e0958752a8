"""`dibs keys`: beside the records, and through a running server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import Done, Main
from tests.server.world import Patch, World, shared
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until

type Keys = Callable[..., Done]


@pytest.fixture
def keys(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Patch) -> Keys:
    """Runs `dibs keys` in this process, without settings of this machine's user."""
    for name in ("SERVER_LEASES", "SERVER_RECORDS", "SERVER_CONFIG", "CONFIG", "URL"):
        monkeypatch.delenv(f"DIBS_{name}", raising=False)
    for name in ("DIBS_API_KEY", "DIBS_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    own = f"sqlite:///{tmp_path / 'own.db'}"
    monkeypatch.setattr("dibs.server.config.implicit_url", lambda: own)
    verb = Main(capsys)
    return lambda *words: verb("keys", *words)


world = shared(in_file=True)


@pytest.mark.parametrize("through", ["the records", "a server"])
def test_a_key_is_made_listed_and_revoked(
    keys: Keys, world: World, tmp_path: Path, monkeypatch: Patch, through: str
) -> None:
    place = "--records", f"sqlite:///{tmp_path / 'records.db'}"
    if through == "a server":
        monkeypatch.setenv("DIBS_API_KEY", world.admin_key)
        place = "--server", world.url

    def listed(*options: str) -> dict[str, Any]:
        return {each["id"]: each for each in keys("list", *options, "--json", *place).objects}

    directories = ("--prefix", "shop/", "--prefix", "base64:_y8", "--prefix", "ü")
    create = ("create", "--name", "ci", "--scope", "acquire", *directories, *place)
    (made,) = keys(*create, "--expires-in", "90d", "--json").objects
    assert set(made) == {"id", "key", "name", "scopes", "prefixes", "expires_at", "url"}
    assert (made["url"], made["scopes"]) == (place[1], ["read", "acquire"])
    assert made["key"].startswith(f"dibs_{made['id']}_")
    assert made["prefixes"] == ["shop/", "ü/", "base64:_y8"]
    found = listed()[made["id"]]
    assert (found["name"], found["good"], found["revoked_at"]) == ("ci", True, None)
    assert made["key"] not in str(found)
    told = keys(*create, "--expires-in", "12h")
    assert told.out.startswith("dibs_")
    assert told.out.strip() not in told.err
    same = f"other keys have this name: {made['id']}"
    for word in (same, "shown only once", "shop/", f" in {place[1]}:", "until 20"):
        assert word in told.err
    head, *rows = keys("list", *place).rows
    assert head == ["ID", "NAME", "SCOPES", "DIRECTORIES", "CREATED", "EXPIRES"]
    assert ["ci", "read,acquire", "shop/, ü/, base64:_y8"] in [row[1:4] for row in rows]
    two = keys("revoke", "ci", *place)
    assert (two.code, made["id"] in two.err) == (64, True), "there are two of that name"
    assert keys("revoke", made["id"], *place).out.startswith(f"revoked {made['id']}")
    assert made["id"] not in listed()
    assert not listed("--all")[made["id"]]["good"]
    for key in ("000000000000", "a/b?c#d", "ü"):
        none = keys("revoke", key, *place)
        assert (none.code, none.out) == (1, "")
        assert f"no key {key} in {place[1]}:" in none.err
    named = ("--name", "a", "--scope", "read")
    for options, why in (
        (("--name", "a\nb", "--scope", "read"), "printable"),
        (("--name", "a", "--scope", "god"), "there are read, acquire, force, admin"),
        ((*named, "--prefix", "/"), "leave it out for everything"),
        ((*named, "--prefix", "base64:=="), "base64"),
        ((*named, "--expires-in", "0s"), "1 s to 100 years"),
        (("--name", "a"), "--scope"),
    ):
        wrong = keys("create", *options, *place)
        assert (wrong.code, wrong.out) == (64, "")
        assert why in wrong.err


def test_records_are_found_in_this_order(
    keys: Keys, world: World, tmp_path: Path, monkeypatch: Patch
) -> None:
    names = ("own", "a", "b", "c", "store")
    urls = {name: f"sqlite:///{tmp_path / name}.db" for name in names}
    for name, url in urls.items():
        keys("create", "--name", name, "--scope", "read", "--records", url)
    config = tmp_path / "serve.toml"
    config.write_text(f'records = "{urls["a"]}"\nleases = "{urls["b"]}"\n')
    stores = ("--config", str(config))

    def name_of(*args: str) -> str:
        return str(keys("list", *args, "--json").objects[0]["name"])

    assert name_of() == "own", "the local store"
    assert f"using the keys in {urls['own']}" in keys("list").err
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.db"
    assert f"no keys in {elsewhere}" in keys("list", "--json", "--records", elsewhere).err
    monkeypatch.setenv("DIBS_URL", urls["store"])
    assert (name_of(), keys("list").err) == ("store", "")
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
        refused = keys("list", "--server", "https://x", other, "x")
        assert (refused.code, "--server" in refused.err) == (64, True)


def test_a_place_wrong_or_away(keys: Keys, world: World, monkeypatch: Patch) -> None:
    here = f"127.0.0.1:{free_port()}"
    for option, url, code, why in (
        ("--records", "memory://", 64, "only lives as long as this command"),
        ("--records", "temporal://host", 64, "sqlite:"),
        ("--records", f"redis://app:hunter2@{here}", 69, "can't be reached"),
        ("--records", f"postgresql://app:hunter2@{here}/x", 69, "can't be reached"),
        ("--server", f"https://{here}", 69, "can't be reached"),
        ("--server", "http://example.org", 64, "in clear"),
        ("--server", "nonsense", 64, "looks like https://"),
    ):
        refused = keys("list", option, url)
        assert (refused.code, refused.out) == (code, ""), url
        assert why in refused.err
        assert "hunter2" not in refused.err
    monkeypatch.setenv("DIBS_URL", world.url)
    told = keys("create", "--name", "a", "--scope", "read")
    assert (told.code, "requires an API key" in told.err) == (77, True)
    assert "DIBS_URL names this service; with access to its records, --records URL" in told.err
    assert "names this service" not in keys("list", "--server", world.url).err


def test_a_running_server_learns_of_keys_and_their_makers(keys: Keys, world: World) -> None:
    place = ("--leases", world.config.leases)
    new = ("--name", "new", "--scope", "read", "--prefix", "shop")
    (made,) = keys("create", *new, "--json", *place).objects
    client = world.client(key=made["key"])
    wait_until(lambda: client.get("/v1/locks").status_code == 200, "it is let in")
    token = client.post("/v1/token").text
    with client.stream("GET", "/v1/stream") as stream:
        keys("revoke", made["id"], *place)
        assert "key ended" in stream.read().decode()
    for credential in (made["key"], token):
        assert world.client(key=credential).get("/v1/locks").status_code == 401
    lines = world.client().get("/v1/audit").json()["entries"]
    found = [each for each in lines if each["detail"].get("id") == made["id"]]
    assert [each["what"] for each in found] == ["key revoked", "key created"]
    assert all(" at " in each["who"] and not each["key"] for each in found)
    assert (found[1]["name"], found[1]["detail"]["scopes"]) == ("shop/", ["read"])
    assert made["key"] not in str(lines)


def test_what_a_key_lacks(keys: Keys, world: World, monkeypatch: Patch) -> None:
    create = ("create", "--name", "a", "--scope", "read", "--server", world.url, "--json")
    monkeypatch.setenv("DIBS_API_KEY", world.key("acquire"))
    assert "admin" in keys(*create).err
    monkeypatch.setenv("DIBS_API_KEY", world.key("admin", prefixes=[b"shop/"]))
    assert "other/" in keys(*create, "--prefix", "other").err
    assert keys(*create, "--prefix", "shop/a").objects[0]["prefixes"] == ["shop/a/"]
