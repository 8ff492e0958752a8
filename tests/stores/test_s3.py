"""S3 as a store: servers without conditional writes, credentials, names, faults, and what it deletes."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest

from dibs.core.book import MemoryBook
from dibs.errors import Forbidden, InvalidRequest, NotConfigured
from dibs.model import Acquire, Granted, Release
from dibs.stores.cas.cells import Cell, Change, SwapConflict
from dibs.stores.cas.clock import StoreClock
from dibs.stores.registry import store_for
from dibs.stores.s3 import S3Store
from dibs.stores.snapshot import dump
from dibs.sync import connect
from tests.servers.moto import MotoServer
from tests.stores.sides import findings, use


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    with MotoServer(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any are good for moto. SeaweedFS must not inherit them: it would take them for those of its users."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def moto_url(moto: MotoServer, _credentials: None) -> str:
    """A moto, and a prefix of its own in its bucket."""
    return f"s3://tests/{token_hex(6)}?endpoint={moto.url}"


def without_conditions(params: Any, **_: Any) -> None:
    for name in ("If-None-Match", "If-Match"):
        params["headers"].pop(name, None)


def test_names_of_all_bytes_keep_their_order(s3_url: str) -> None:
    names = [
        *(b"a", b"a/", b"a/b", b"a.b", b"..", b"a%2Fb", b"a+b c"),
        *(b'"#?<>\\^`{|}*~!', b"\x00\xff", b"x" * 300 + b"/y"),
        *(b"x" * length for length in (245, 246, 495, 496, 512)),  # parts of 250 with the kind
        "\N{HIRAGANA LETTER A}".encode() * 100,
    ]
    connection = store_for(s3_url).blocking_connection()
    connection.open(10)
    commands = [Acquire(b"lock:" + name, f"id{n}", "me", 60) for n, name in enumerate(names)]
    replies = connection.apply(commands, 30)
    assert all(isinstance(reply, Granted) for reply in replies)
    found: list[bytes] = []
    cursor: bytes | None = None
    while True:
        page = connection.scan(b"lock:", cursor, 4)
        found += [item.key for item in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == sorted(b"lock:" + name for name in names)
    assert connection.scan(b"lock:a/", None, 10).items[0].key == b"lock:a/"
    connection.apply([Release(each.key, each.id) for each in commands], 30)
    connection.close()


def test_a_name_that_is_too_long_for_the_server(s3_url: str) -> None:
    with connect(s3_url) as client, pytest.raises(InvalidRequest, match="name is too long"):
        client.lock(b"\xff" * 400).acquire(wait=20)


def test_a_server_that_ignores_conditions_is_refused(
    moto_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an old MinIO does: our own client leaves the conditions out."""

    def deaf(make: Callable[[S3Store], Any]) -> Callable[[S3Store], Any]:
        def made(store: S3Store) -> Any:
            client = make(store)
            client.meta.events.register("before-call.s3.PutObject", without_conditions)
            return client

        return made

    monkeypatch.setattr(S3Store, "_make_client", deaf(S3Store._make_client))
    with pytest.raises(NotConfigured, match="ignores the conditions"):
        use(moto_url, wait=20)


@pytest.mark.parametrize("heeds", [True, False])
async def test_a_cell_is_only_deleted_where_no_other_can_be(moto_url: str, *, heeds: bool) -> None:
    """Some servers delete whatever is there. An idle cell stays, unless the server is seen to compare."""
    store = store_for(moto_url)
    assert isinstance(store, S3Store)
    cells: Any = store.make_cells(StoreClock(), time.monotonic)
    await cells.open()
    if not heeds:
        events = cells._client.meta.events
        events.register("before-call.s3.DeleteObject", without_conditions)
    book = MemoryBook()
    version = await cells.swap(b"a", None, Change(dump(book), book, ()))
    if heeds:
        await cells.swap(b"a", version, Change(None, book, ()))
        assert await cells.load(b"a") == Cell(None, None)
    else:
        with pytest.raises(SwapConflict):
            await cells.swap(b"a", version, Change(None, book, ()))
        assert (await cells.load(b"a")).version == version
    await cells.close()


def test_no_credentials(moto_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(NotConfigured, match="Credentials come from"):
        use(moto_url, wait=20)
    monkeypatch.setenv("AWS_PROFILE", "missing")
    with pytest.raises(NotConfigured, match="missing"):
        use(moto_url, wait=20)


def test_wrong_credentials(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(Forbidden, match="credentials need s3:GetObject"):
        use(s3_url, wait=20)


@pytest.mark.usefixtures("_credentials")
def test_no_bucket(moto: MotoServer) -> None:
    with pytest.raises(NotConfigured, match="Check the bucket"):
        use(f"s3://missing?endpoint={moto.url}", wait=20)


@pytest.mark.usefixtures("_credentials")
def test_doctor_knows_whether_objects_expire(moto: MotoServer) -> None:
    session = boto3.session.Session()  # which looks at the environment now
    client = session.client("s3", endpoint_url=moto.url, region_name="us-east-1")
    client.create_bucket(Bucket="expiring")
    url = f"s3://expiring?endpoint={moto.url}"
    assert findings(url)["lifecycle"].level == "ok"
    rule = {"ID": "all", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}
    client.put_bucket_lifecycle_configuration(
        Bucket="expiring", LifecycleConfiguration={"Rules": [rule]}
    )
    client.close()
    assert findings(url)["lifecycle"].level == "warning"
