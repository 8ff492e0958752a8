"""Django: the default store from the settings, and `manage.py locked_migrate` by several processes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from django.core.exceptions import ImproperlyConfigured  # type: ignore[import-untyped]

from dibs.contrib.django.store import place_and_options, url_of_cache, url_of_database
from dibs.errors import NotConfigured
from dibs.sync import connect
from tests.contrib.django_project import Project, end, told
from tests.runtime.scripts import run_script

type NewProject = Callable[..., Project]


@pytest.fixture
def new_project(tmp_path: Path) -> Iterator[NewProject]:
    made: list[Project] = []

    def make(databases: dict[str, Any] | None = None, **settings: Any) -> Project:
        file = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "app.sqlite3")}
        made.append(Project(tmp_path, databases or {"default": file}, **settings))
        return made[-1]

    yield make
    for project in made:
        project.close()


def all_migrate(project: Project) -> None:
    """Three start at once: one works, the others wait and then find nothing to do."""
    first = project.start("locked_migrate")
    [pid] = project.begun()
    assert pid == first.pid
    others = [project.start("locked_migrate") for _ in range(2)]
    for other in others:
        assert f"/{pid} (manage.py migrate)" in told(other, "waiting")
    project.may_go_on()
    ends = [end(process) for process in (first, *others)]
    assert [code for code, _, _ in ends] == [0, 0, 0], ends
    assert "Applying shop.0001_initial... OK" in ends[0][1]
    for _, out, _ in ends[1:]:
        assert "No migrations to apply" in out
    assert project.begun() == [pid]


@pytest.mark.once
@pytest.mark.multiprocess
def test_one_migrates_and_the_others_find_nothing_to_do(new_project: NewProject) -> None:
    all_migrate(new_project(DIBS={"DATABASE": "default"}))


@pytest.mark.once
@pytest.mark.multiprocess
def test_the_lock_lies_in_the_database_itself_where_no_store_is_named(
    new_project: NewProject, postgres_url: str
) -> None:
    url = urlsplit(postgres_url)
    entry = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(url.path[1:]),
        "USER": unquote(url.username or ""),
        "PASSWORD": unquote(url.password or ""),
        "HOST": url.hostname or "",
        "PORT": url.port or "",
        "OPTIONS": {"application_name": "shop & more", "server_side_binding": True},
    }
    all_migrate(new_project({"default": entry}))


@pytest.mark.once
@pytest.mark.multiprocess
def test_the_lock_lies_in_the_store_of_the_settings_file(new_project: NewProject) -> None:
    project = new_project()
    url = f"sqlite:///{project.folder}/elsewhere.db"
    file = project.folder / "dibs.toml"
    file.write_text(f'url = "{url}"')
    first = project.start("locked_migrate", DIBS_CONFIG=str(file))
    project.begun()
    with connect(url) as client:
        [status] = client.list()
    assert status.name.startswith(b"django-migrate:sqlite:")
    project.may_go_on()
    assert end(first)[0] == 0
    assert not (project.folder / "app.sqlite3.leases").exists()
    file.write_text("url = 3")
    code, _, err = end(project.start("locked_migrate", DIBS_CONFIG=str(file)))
    assert (code, f"not migrated: {file}: url is 3" in err.splitlines()[-1]) == (1, True), err


@pytest.mark.once
@pytest.mark.multiprocess
def test_who_kills_the_one_that_migrates_lets_the_next_go_on(new_project: NewProject) -> None:
    project = new_project()
    first = project.start("locked_migrate")
    project.begun()
    second = project.start("locked_migrate")
    told(second, "waiting")
    first.kill()
    assert project.begun(2) == [first.pid, second.pid]
    project.may_go_on()
    assert "Applying shop.0001_initial... OK" in end(second)[1]


@pytest.mark.once
@pytest.mark.multiprocess
def test_who_does_not_want_to_wait(new_project: NewProject) -> None:
    project = new_project()
    first = project.start("locked_migrate")
    project.begun()
    at_most, not_at_all = (
        project.start("locked_migrate", "--wait", "0.1s"),
        project.start("locked_migrate", "--no-wait"),
    )
    code, out, err = end(at_most)
    assert (code, out) == (75, "")
    assert "not migrated: " in err
    assert "(manage.py migrate)" in err
    code, out, err = end(not_at_all)
    assert (code, out) == (0, "")
    assert "skipped" in err
    code, out, _ = project.run("locked_migrate", "--plan")
    assert (code, "shop.0001_initial" in out) == (0, True), "looking needs no lock"
    another = project.start("locked_migrate", "shop", "zero", "--lock-name", "another")
    assert end(another)[0] == 0
    project.may_go_on()
    assert end(first)[0] == 0


@pytest.mark.once
@pytest.mark.multiprocess
def test_what_makes_no_sense_migrates_nothing(new_project: NewProject) -> None:
    project = new_project()
    for option in ("--wait=soon", "--wait=-5", "--lock-name="):
        code, out, err = project.run("locked_migrate", option)
        assert (code, out) == (1, ""), option
        assert "not migrated: " in err


@pytest.mark.once
@pytest.mark.multiprocess
def test_bare_primitives_use_the_store_of_the_settings(new_project: NewProject) -> None:
    project = new_project(DIBS={"DATABASE": "default", "CALL_TIMEOUT": "5s"})
    code, out, err = project.run(
        "shell",
        "-v0",
        "-c",
        "import asyncio, json, dibs.sync\n"
        "async def name():\n"
        "    async with dibs.Lock('b'): return dibs.connect().url\n"
        "with dibs.sync.Lock('a'):\n"
        "    print(json.dumps([dibs.sync.connect().url, asyncio.run(name())]))",
    )
    assert code == 0, err
    assert json.loads(out) == [f"sqlite:///{project.folder}/app.sqlite3.leases"] * 2


@pytest.mark.once
@pytest.mark.multiprocess
def test_leases_lie_in_the_redis_of_a_cache(new_project: NewProject, redis_url: str) -> None:
    cache = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": redis_url}
    project = new_project(CACHES={"default": cache}, DIBS={"CACHE": "default"})
    held = "from dibs.sync import Lock\nprint(Lock('a', ttl='60s').acquire().detach())"
    code, out, err = project.run("shell", "-v0", "-c", held)
    assert code == 0, err
    with connect(redis_url) as client:
        assert client.lock("a").locked()
        assert client.attach(out.strip()).release()


@pytest.mark.once
@pytest.mark.multiprocess
def test_wrong_settings_fail_the_start(new_project: NewProject) -> None:
    code, _, err = new_project(DIBS={"DATABASE": "other"}).run("check")
    assert code == 1
    assert "'other', which DATABASES doesn't have" in err


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"URI": "redis://localhost"}, "DIBS has URI: it may have URL, DATABASE, CACHE"),
        ({"URL": "sqlite:///x", "CACHE": "default"}, "one of URL, DATABASE, CACHE"),
        (7, "neither a URL nor a dict"),
    ],
)
def test_wrong_settings(setting: Any, words: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=words):
        place_and_options(setting)


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ({"NAME": "shop"}, "postgresql:///shop"),
        ({"NAME": "shop", "HOST": "db", "PORT": 5433}, "postgresql://db:5433/shop"),
        ({"NAME": "s", "USER": "me", "PASSWORD": "p@/ ?"}, "postgresql://me:p%40%2F%20%3F@/s"),
        ({"NAME": "s", "HOST": "/run/pg", "PORT": "1"}, "postgresql:///s?host=%2Frun%2Fpg&port=1"),
        ({"NAME": "s", "HOST": "::1"}, "postgresql://[::1]/s"),
        ({"NAME": "s", "OPTIONS": {"sslmode": "require", "pool": True}}, "…/s?sslmode=require"),
        ({"NAME": "", "OPTIONS": {"service": "shop"}}, "postgresql:///?service=shop"),
    ],
)
def test_the_url_of_a_database(entry: dict[str, Any], url: str) -> None:
    entry = {"ENGINE": "django.db.backends.postgresql", **entry}
    made = url_of_database(entry, "default")
    assert made == url.replace("…", "postgresql://")
    client = connect(made)  # libpq reads it too
    if entry.get("PASSWORD"):
        assert "%40" not in client.url
        assert "p@" not in repr(client)


@pytest.mark.parametrize(
    "entry",
    [
        {"ENGINE": "django.db.backends.mysql", "NAME": "shop"},
        {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        {"ENGINE": "django.db.backends.sqlite3", "NAME": "file:x?mode=memory&cache=shared"},
        {},
    ],
)
def test_a_database_that_can_keep_no_leases(entry: dict[str, Any]) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"DATABASES\['main'\].*set DIBS"):
        url_of_database(entry, "main")


def test_a_cache_in_redis() -> None:
    entry = {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": ["redis://:secret@localhost:1234/1", "redis://replica:1234"],
        "OPTIONS": {"db": 7, "pool_class": "some.Pool"},
    }
    client = connect(url_of_cache(entry, "default"))
    assert client.url == "redis://:***@localhost:1234/1"
    assert "secret" not in repr(client)
    login = {"OPTIONS": {"username": "u@", "password": "p/", "DB": 7, "ssl_check_hostname": False}}
    assert url_of_cache(login | {"LOCATION": "rediss://cache"}, "default") == (
        "rediss://u%40:p%2F@cache?db=7&ssl_check_hostname=False"
    )
    with pytest.raises(ImproperlyConfigured, match=r"CACHES\['default'\] is no Redis"):
        url_of_cache({"BACKEND": "x.LocMemCache", "LOCATION": "snowflake"}, "default")


def test_a_wrong_url_tells_no_password() -> None:
    entry = {"ENGINE": "django.db.backends.postgresql", "NAME": "s", "USER": "me"}
    wrong = entry | {"PASSWORD": "secret", "OPTIONS": {"nonsense": 1}}
    with pytest.raises(NotConfigured, match="nonsense") as error:
        connect(url_of_database(wrong, "default"))
    assert "secret" not in str(error.value)


@pytest.mark.multiprocess
def test_a_transaction_within_a_lock(tmp_path: Path) -> None:
    lines = run_script(
        """
import logging, sys
from pathlib import Path
import django
from django.conf import settings

folder = Path(sys.argv[1])
file = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "app.sqlite3")}
settings.configure(
    DATABASES={"default": file}, DIBS={"DATABASE": "default"}, USE_TZ=True,
    INSTALLED_APPS=["dibs.contrib.django"],
)
django.setup()
logging.getLogger("dibs").setLevel(logging.CRITICAL)
from django.db import connection, transaction
from dibs.contrib.django import locked_atomic
from dibs.sync import LeaseLost, Lock

def count():
    with connection.cursor() as cursor:
        return cursor.execute("select count(*) from t").fetchone()[0]

def insert():
    with connection.cursor() as cursor:
        cursor.execute("insert into t values (1)")

with connection.cursor() as cursor:
    cursor.execute("create table t (x integer)")
lock = Lock("order:42")
with locked_atomic(lock) as lease:
    insert()
    transaction.on_commit(lambda: print("commit, held:", lock.locked()))
print(count(), lock.locked())
try:
    with locked_atomic(lock):
        insert()
        raise LookupError
except LookupError:
    print("rolled back", count(), lock.locked())
try:
    with locked_atomic(lock) as lease:
        insert()
        lock.revoke(reason="a test", now=True)
        lease.wait_lost(20)
except LeaseLost:
    print("lost", count())
try:
    with transaction.atomic(), locked_atomic(lock):
        pass
except RuntimeError as error:
    print("durable" in str(error), lock.locked())
""",
        tmp_path,
    )
    assert lines == ["commit, held: True", "1 False", "rolled back 1 False", "lost 1", "True False"]
