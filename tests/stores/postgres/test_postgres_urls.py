"""What PostgreSQL URLs mean, and that none of them ever shows a password."""

import subprocess
import sys

import pytest
from psycopg.conninfo import conninfo_to_dict

from dibs.errors import NotConfigured
from dibs.stores.postgres import PostgresStore
from dibs.stores.postgres.url import Address
from dibs.stores.registry import store_for


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app@db.example/leases",
        "postgres://app@db.example/leases",
        "postgresql+psycopg://app@db.example/leases",
        "POSTGRESQL://app@db.example/leases",
    ],
)
def test_every_spelling_is_the_same_store(url: str) -> None:
    store = store_for(url)
    assert isinstance(store, PostgresStore)
    assert store.url == "postgresql://app@db.example/leases"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        (
            "postgresql://app:pw@db:6000/leases?sslmode=require&application_name=billing",
            {
                "user": "app",
                "password": "pw",
                "host": "db",
                "port": "6000",
                "dbname": "leases",
                "sslmode": "require",
                "application_name": "billing",
            },
        ),
        ("postgresql:///leases?host=/run/pg", {"dbname": "leases", "host": "/run/pg"}),
        ("postgresql://%2Frun%2Fpg/leases", {"host": "/run/pg"}),
        ("postgresql://", {}),
        ("postgresql://a,b:6000/x", {"host": "a,b", "port": ",6000"}),
        ("postgresql://db/x?connect_timeout=3&keepalives_idle=1", {"connect_timeout": "3"}),
        ("postgresql://db/x?service=mine", {"service": "mine"}),
        ("postgresql://db/x?options=-c%20work_mem%3D1MB", {"options": "-c work_mem=1MB"}),
    ],
)
def test_all_of_libpq_is_passed_on(url: str, found: dict[str, str]) -> None:
    settings = conninfo_to_dict(Address(url).conninfo)
    assert found.items() <= {key: str(value) for key, value in settings.items()}.items()


def test_ours_are_taken_out_and_the_rest_is_kept() -> None:
    address = Address("postgresql://db/x?pooler=yes&sslmode=require&migrate=no")
    assert (address.pooler, address.may_migrate) == ("yes", False)
    settings = conninfo_to_dict(address.conninfo)
    assert settings["sslmode"] == "require"
    assert {"pooler", "migrate"} & set(settings) == set()


def test_what_is_not_said() -> None:
    address = Address("postgresql://db/x")
    settings = conninfo_to_dict(address.conninfo)
    assert (address.pooler, address.may_migrate) == ("auto", True)
    assert settings["connect_timeout"] == "10"
    assert settings["client_encoding"] == "UTF8"
    assert settings["fallback_application_name"] == "dibs"
    assert "target_session_attrs" not in settings


def test_several_hosts_mean_the_one_that_can_be_written_to() -> None:
    assert "target_session_attrs=read-write" in Address("postgresql://a,b/x").conninfo
    asked = Address("postgresql://a,b/x?target_session_attrs=primary")
    assert "target_session_attrs=primary" in asked.conninfo


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://db:6000/leases", "db:6000/leases"),
        ("postgresql://app@db/", "db:5432/app"),
        ("postgresql://a:1,b:2/x", "a:1,b:2/x"),
        ("postgresql://a,b/x?port=7000", "a:7000,b:7000/x"),
        ("postgresql:///x?host=/run/pg", "/run/pg:5432/x"),
    ],
)
def test_the_place_that_messages_name(
    url: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER"):
        monkeypatch.delenv(variable, raising=False)
    assert Address(url).place == place


def test_the_environment_is_libpqs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "elsewhere")
    monkeypatch.setenv("PGPORT", "7777")
    assert Address("postgresql:///x").place == "elsewhere:7777/x"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://db/x?nosuchoption=1", "nosuchoption"),
        ("postgresql://[::1/x", "no URL of a PostgreSQL database"),
        ("postgresql://u:pass@word@db/x", "as %40, and / as %2F"),
    ],
)
def test_what_is_refused_and_how(url: str, says: str) -> None:
    with pytest.raises(NotConfigured) as refusal:
        PostgresStore(url)
    assert says in str(refusal.value)


SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://app:{SECRET}@db/x",
        f"postgresql://:{SECRET}@db/x",
        f"postgresql://app:{SECRET}@a,b:5433/x?sslmode=require",
        f"postgresql://app@db/x?password={SECRET}",
        f"postgresql://app@db/x?sslmode=require&sslpassword={SECRET}&sslkey=k",
        f"postgresql://app:{SECRET}/{SECRET}@db/x",
        f"postgresql://app:{SECRET}@{SECRET}@db/x",
        f"postgresql://app:{SECRET}?{SECRET}@db/x",
        f"postgresql://app:{SECRET}#{SECRET}@db/x",
        f"postgresql://app:{SECRET}:{SECRET}@db/x",
        f"postgresql://app:%zz{SECRET}@db/x",
        f"postgresql://app:[{SECRET}@db/x",
    ],
)
def test_no_password_is_ever_shown(url: str) -> None:
    try:
        store = PostgresStore(url)
    except NotConfigured as refusal:
        text = f"{refusal} {refusal!r} {refusal.__cause__!r}"
    else:
        text = f"{store.url} {store!r} {Address(url).place}"
    assert SECRET not in text


def test_without_the_extra_the_error_names_the_command() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from dibs.sync import connect\n"
        "from dibs.errors import NotConfigured\n"
        "try: connect('postgresql://db/x')\n"
        "except NotConfigured as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'dibs[postgres]'" in done.stdout, done.stderr


def test_what_it_promises() -> None:
    promised = store_for("postgresql://db/x").capabilities.names()
    assert {"cluster", "durable", "fenced", "notifies", "clock", "power-loss"} <= promised
