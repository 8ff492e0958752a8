"""Django: the default store from the settings, and `manage.py locked_migrate` by several processes."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from django.core.exceptions import ImproperlyConfigured  # type: ignore[import-untyped]

from dibs.contrib.django.store import place_and_options, url_of_cache, url_of_database
from dibs.errors import NotConfigured
from dibs.sync import connect
from tests.cli.processes import end
from tests.how_to.programs import Programs, line_with
from tests.servers.waiting import wait_until

MIGRATION = """
import os, time
from pathlib import Path
from django.db import migrations, models

def work(apps, editor):
    folder = Path(os.environ["PROJECT"])
    with (folder / "notes").open("a") as notes:
        notes.write(f"{os.getpid()}\\n")
    while not (folder / "go").exists():
        time.sleep(0.01)

class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.RunPython(work),
        migrations.CreateModel("Order", [("id", models.AutoField(primary_key=True))]),
    ]
"""


MANAGE = "exec python manage.py"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Programs]:
    """The project of the how-to page, with settings and a migration of ours."""
    with Programs("how-to/django.md", tmp_path) as project:
        del project.environment["DIBS_URL"]
        project.environment["PROJECT"] = str(tmp_path)
        (tmp_path / "shop/migrations").mkdir()
        (tmp_path / "shop/migrations/__init__.py").touch()
        (tmp_path / "shop/migrations/0001_initial.py").write_text(MIGRATION)
        yield project


def configure(project: Programs, database: dict[str, Any] | None = None, **settings: Any) -> None:
    file = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(project.folder / "app.sqlite3")}
    settings |= {"INSTALLED_APPS": ["dibs.contrib.django", "shop"], "USE_TZ": True}
    settings["DATABASES"] = {"default": database or file}
    lines = [f"{name} = {value!r}\n" for name, value in settings.items()]
    (project.folder / "settings.py").write_text("".join(lines))


def begun(project: Programs, count: int = 1) -> list[int]:
    """The processes that have begun to migrate, once there are so many."""
    notes = project.folder / "notes"
    notes.touch()
    wait_until(lambda: notes.read_text().count("\n") >= count, f"{count} have begun to migrate")
    return [int(line) for line in notes.read_text().split()]


@pytest.mark.once
@pytest.mark.multiprocess
def test_one_of_several_migrates_with_a_lock_in_the_database_itself(
    project: Programs, postgres_url: str
) -> None:
    """Three start at once: one works, the others wait and then find nothing to do."""
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
    configure(project, entry)
    first = project.shell(f"{MANAGE} locked_migrate")
    [pid] = begun(project)
    assert pid == first.pid
    others = [project.shell(f"{MANAGE} locked_migrate") for _ in range(2)]
    for other in others:
        assert f"/{pid} (manage.py migrate)" in line_with("waiting", other, "stderr")
    (project.folder / "go").touch()
    ends = [end(process) for process in (first, *others)]
    assert [code for code, _, _ in ends] == [0, 0, 0], ends
    assert "Applying shop.0001_initial... OK" in ends[0][1]
    assert all("No migrations to apply" in out for _, out, _ in ends[1:])
    assert begun(project) == [pid]


@pytest.mark.once
@pytest.mark.multiprocess
def test_options_of_waiting_a_store_from_a_settings_file_and_a_kill(project: Programs) -> None:
    configure(project)
    url, file = f"sqlite:///{project.folder}/elsewhere.db", project.folder / "dibs.toml"
    file.write_text(f'url = "{url}"')
    project.environment |= {"DIBS_CONFIG": str(file), "DIBS_TTL": "3s"}
    first = project.shell(f"{MANAGE} locked_migrate")
    begun(project)
    with connect(url) as client:
        [status] = client.list()
    assert status.name.startswith(b"django-migrate:sqlite:")
    at_most, not_at_all, looks, another, second = (
        project.shell(f"{MANAGE} locked_migrate {options}")
        for options in ("--wait 0.1s", "--no-wait", "--plan", "shop zero --lock-name another", "")
    )
    code, out, err = end(at_most)
    assert (code, out) == (75, "")
    assert "not migrated: " in err
    assert "(manage.py migrate)" in err
    code, out, err = end(not_at_all)
    assert (code, out, "skipped" in err) == (0, "", True)
    code, out, _ = end(looks)
    assert (code, "shop.0001_initial" in out) == (0, True), "looking needs no lock"
    assert end(another)[0] == 0
    line_with("waiting", second, "stderr")
    first.kill()
    assert begun(project, 2) == [first.pid, second.pid]
    (project.folder / "go").touch()
    assert "Applying shop.0001_initial... OK" in end(second)[1]


IN_A_SHELL = """
import asyncio, logging
import dibs.sync
from django.db import connection, transaction
from dibs.contrib.django import locked_atomic

async def url():
    async with dibs.Lock("b"):
        return dibs.connect().url

def run(statement):
    with connection.cursor() as cursor:
        return cursor.execute(statement).fetchall()

lock = dibs.sync.Lock("a")
print(dibs.sync.connect().url == asyncio.run(url()), dibs.sync.connect().url)
logging.getLogger("dibs").setLevel(logging.CRITICAL)
run("create table t (x integer)")
with locked_atomic(lock):
    run("insert into t values (1)")
    transaction.on_commit(lambda: print("commit, held:", lock.locked()))
print(run("select * from t"), lock.locked())
try:
    with locked_atomic(lock) as lease:
        run("insert into t values (2)")
        lock.revoke(reason="a test", now=True)
        lease.wait_lost(20)
except dibs.sync.LeaseLost:
    print("lost", run("select * from t"))
try:
    with transaction.atomic(), locked_atomic(lock):
        pass
except RuntimeError as error:
    print("durable" in str(error), lock.locked())
"""


@pytest.mark.once
@pytest.mark.multiprocess
def test_bare_primitives_use_the_store_of_the_settings(project: Programs) -> None:
    """And a transaction within a lock is committed before its release, or not at all."""
    configure(project, DIBS={"DATABASE": "default", "CALL_TIMEOUT": "5s"})
    code, out, err = end(project.shell(f"{MANAGE} shell -v0 -c {shlex.quote(IN_A_SHELL)}"))
    assert code == 0, err
    assert out.splitlines() == [
        f"True sqlite:///{project.folder}/app.sqlite3.leases",
        "commit, held: True",
        "[(1,)] False",
        "lost [(1,)]",
        "True False",
    ]


def test_wrong_settings() -> None:
    wrong: list[tuple[Any, str]] = [
        ({"URI": "redis://localhost"}, "DIBS has URI: it may have URL, DATABASE, CACHE"),
        ({"URL": "sqlite:///x", "CACHE": "default"}, "one of URL, DATABASE, CACHE"),
        (7, "neither a URL nor a dict"),
    ]
    for setting, words in wrong:
        with pytest.raises(ImproperlyConfigured, match=words):
            place_and_options(setting)


POSTGRES = "django.db.backends.postgresql"


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ({"NAME": "shop", "HOST": "::1", "PORT": 5433}, "postgresql://[::1]:5433/shop"),
        ({"NAME": "s", "USER": "me", "PASSWORD": "p@/ ?"}, "postgresql://me:p%40%2F%20%3F@/s"),
        ({"NAME": "s", "OPTIONS": {"sslmode": "require", "pool": True}}, "…/s?sslmode=require"),
        ({"NAME": "", "OPTIONS": {"service": "shop"}}, "postgresql:///?service=shop"),
    ],
)
def test_the_url_of_a_database(entry: dict[str, Any], url: str) -> None:
    made = url_of_database({"ENGINE": POSTGRES, **entry}, "default")
    assert made == url.replace("…", "postgresql://")
    assert "p%40" not in repr(connect(made)), "libpq reads it too, and no password is shown"


def test_places_that_can_keep_no_leases() -> None:
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    for entry in ({"ENGINE": "django.db.backends.mysql", "NAME": "shop"}, sqlite, {}):
        with pytest.raises(ImproperlyConfigured, match=r"DATABASES\['main'\].*set DIBS"):
            url_of_database(entry, "main")
    with pytest.raises(ImproperlyConfigured, match=r"CACHES\['default'\] is no Redis"):
        url_of_cache({"BACKEND": "x.LocMemCache", "LOCATION": "snowflake"}, "default")
    wrong = {"ENGINE": POSTGRES, "NAME": "s", "PASSWORD": "secret", "OPTIONS": {"nonsense": 1}}
    with pytest.raises(NotConfigured, match="nonsense") as error:
        connect(url_of_database(wrong, "default"))
    assert "secret" not in str(error.value)


def test_a_cache_in_redis() -> None:
    entry = {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": ["redis://:secret@localhost:1234/1", "redis://replica:1234"],
        "OPTIONS": {"db": 7, "pool_class": "some.Pool"},
    }
    assert connect(url_of_cache(entry, "default")).url == "redis://:***@localhost:1234/1"
    login = {"OPTIONS": {"username": "u@", "password": "p/", "DB": 7, "ssl_check_hostname": False}}
    assert url_of_cache(login | {"LOCATION": "rediss://cache"}, "default") == (
        "rediss://u%40:p%2F@cache?db=7&ssl_check_hostname=False"
    )
