"""The settings file: what it may say, what comes before it, and how what is wrong with it is told."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import LeaderConfig, LockConfig, NotConfigured, TaskLockConfig, UnsafeTiming
from dibs.settings import STORE_KEYS
from tests.config.conftest import Write
from tests.pages import DOCS, blocks, run
from tests.runtime.scripts import run_script


@pytest.fixture(params=[dibs, dibs.sync], ids=["async", "sync"])
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


EVERYTHING = """
ttl = "20s"
wait = 5

[lock.cart]
ttl = "2m"
priority = 3
note = "why"
label = "web"
auto_renew = false
max_hold = 90.5

[lock."order:{id}"]
wait = "forever"

[semaphore.gpu]
ttl = 70

[rwlock.index]
ttl = 80

[tasklock.nightly]
min_hold = "5m"
max_hold = "1h"
cancel = true

[leader.cluster]
ttl = 30
renew_deadline = 20
retry = 4
"""


def test_each_primitive_finds_what_is_its_own(module: Any, write: Write) -> None:
    write(EVERYTHING)
    assert module.Lock("cart").config == LockConfig(
        ttl=120,
        wait=5,
        priority=3,
        note="why",
        label="web",
        auto_renew=False,
        max_hold=90.5,
    )
    assert module.Lock("other").config == LockConfig(ttl=20, wait=5)
    assert module.Semaphore("gpu", 2).config == LockConfig(ttl=70, wait=5)
    assert module.RWLock("index").config == LockConfig(ttl=80, wait=5)
    task = module.TaskLock("nightly")
    assert (task.min_hold, task.max_hold) == (300, 3600)
    leader = module.LeaderElection("cluster")
    assert (leader.ttl, leader.renew_deadline, leader.retry) == (30, 20, 4)


def test_leaders_and_task_locks_have_nothing_from_what_is_for_all(
    module: Any, write: Write
) -> None:
    write('ttl = "20s"\nnote = "why"')
    assert module.LeaderElection("cluster").ttl == 15
    assert module.TaskLock("nightly", 1, 60).config.ttl == 60
    assert module.TaskLock("nightly", 1, 60).config.note == ""


def test_each_source_gives_way_to_the_one_before(
    module: Any, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ttl(**more: Any) -> Any:
        return module.Lock("cart", **more).config.ttl

    write('ttl = "1m"')
    assert ttl() == 60
    write('ttl = "1m"\n[lock.cart]\nttl = "2m"')
    assert ttl() == 120
    monkeypatch.setenv("DIBS_TTL", "3m")
    assert ttl() == 180
    monkeypatch.setenv("DIBS_LOCK__CART__TTL", "4m")
    assert ttl() == 240
    assert ttl(ttl="5m") == 300
    assert ttl(env_load=False) == 30
    assert module.Lock.from_config("cart", LockConfig()).config.ttl == 30


def test_task_locks_are_set_by_variables_too(
    module: Any, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write('[tasklock.nightly]\nmin_hold = "5m"\nmax_hold = "1h"')
    monkeypatch.setenv("DIBS_TASKLOCK__NIGHTLY__MAX_HOLD", "2h")
    monkeypatch.setenv("DIBS_TASKLOCK__NIGHTLY__CANCEL", "maybe")
    with pytest.raises(ValueError, match="NIGHTLY__CANCEL is 'maybe': write true or false"):
        module.TaskLock("nightly")
    assert module.TaskLock("nightly", cancel=True).max_hold == 7200
    assert module.TaskLock("nightly", 1, cancel=True).min_hold == 1
    plain = module.TaskLock("nightly", env_load=False)
    assert (plain.min_hold, plain.max_hold) == (1, 60)
    module.TaskLock.wraps("nightly", cancel=True)(lambda: None)


def test_a_name_in_the_file_may_be_any_and_is_not_folded(module: Any, write: Write) -> None:
    write('[lock."Order:{id}/ü"]\nttl = 50\n[lock.Cart]\nttl = 60')
    assert module.Lock("Order:{id}/ü").config.ttl == 50
    assert module.Lock("Order:{id}/ü".encode()).config.ttl == 50
    assert module.Lock("Cart").config.ttl == 60
    assert module.Lock("cart").config.ttl == 30
    assert module.Lock(b"\xff").config.ttl == 30


def test_a_wrapped_function_finds_its_template(module: Any, write: Write) -> None:
    path = write('[lock."report:{day}"]\nttl = "soon"')
    with pytest.raises(ValueError, match=re.escape(f'{path}: [lock."report:{{day}}"] ttl is')):
        module.Lock.wraps("report:{day}")(lambda day: day)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '[lock.cart]\nttl = "soon"',
            "[lock.cart] ttl is 'soon': write it as \"30s\"",
        ),
        ("[lock.cart]\nttl = -1", "[lock.cart] ttl is -1: it can't be negative"),
        ("[lock.cart]\nttl = true", "[lock.cart] ttl is true: ttl is True: give seconds, a timed"),
        ("[lock.cart]\nwait = [1]", "[lock.cart] wait is [1]: give seconds"),
        ("ttl = {a = 1}", " ttl is {'a': 1}: give seconds"),
        ('priority = "high"', " priority is 'high': write a whole number, such as 7"),
        (
            "[lock.cart]\npriority = 1.5",
            "[lock.cart] priority is 1.5: give an int",
        ),
        ('auto_renew = "maybe"', " auto_renew is 'maybe': write true or false"),
        (
            "[lock.cart]\ntll = 3",
            "[lock.cart] unknown setting tll. Did you mean ttl? (allowed",
        ),
        (
            "[lock.cart.old]\nttl = 3",
            "[lock.cart] unknown setting old (allowed settings: ttl",
        ),
        ("tll = 3", " unknown setting tll. Did you mean ttl?"),
        ("[lokc.cart]\nttl = 3", " unknown setting lokc. Did you mean lock?"),
        ("[lock]\nttl = 3", " [lock] ttl is 3: write a table for each name, such as [lock.cart]"),
        ("lock = 3", " lock is 3: write a table for each name, such as [lock.cart]"),
        (
            "[stores.reports]\nulr = 'redis://:secret@h'",
            "[stores.reports] unknown setting ulr. Did",
        ),
        ("[stores.reports]\nurl = 3", "[stores.reports] url is 3: give a store's URL, such as"),
        ("url = false", " url is false: give a store's URL"),
        (
            "[stores]\nreports = 'redis://:secret@h'",
            "[stores] reports is 'redis://:***@h': write a table for",
        ),
        ("[stores.Reports]\nurl = 'redis://h'", "[stores.Reports]: a store's name is 'Reports'"),
    ],
)
def test_what_is_wrong_tells_file_section_and_key(
    module: Any, write: Write, text: str, told: str
) -> None:
    path = write(text)
    with pytest.raises(ValueError, match=re.escape(f"{path}: {told.strip()}")) as error:
        module.Lock("cart")
    assert "secret" not in str(error.value)


def test_unsafe_timing_tells_them_too(module: Any, write: Write) -> None:
    path = write("[lock.cart]\nttl = 0.01\n[leader.main]\nttl = 5\nretry = 4")
    with pytest.raises(UnsafeTiming, match=re.escape(f"{path}: [lock.cart] ttl is 0.01: ttl is")):
        module.Lock("cart")
    told = f"{path}: [leader.main] ttl is 5; {path}: [leader.main] retry is 4: retry is 4 s"
    with pytest.raises(UnsafeTiming, match=re.escape(told)):
        module.LeaderElection("main")


def test_a_section_is_nobody_elses_trouble(module: Any, write: Write) -> None:
    """A file that many programs share may have a setting that only a newer one knows."""
    write('[lock.cart]\nbrand_new = 1\n[leader.main]\nttl = "soon"')
    assert module.Lock("other").config.ttl == 30


def test_a_file_that_is_not_there_or_no_toml_is_told(
    module: Any, monkeypatch: pytest.MonkeyPatch, write: Write, tmp_path: Path
) -> None:
    path = write("ttl = soon")
    with pytest.raises(
        NotConfigured, match=rf"DIBS_CONFIG names {path}, which is no TOML: .*line 1"
    ):
        module.Lock("cart")
    path.write_bytes(b"\xff")
    with pytest.raises(NotConfigured, match=r"which is no TOML: .*utf-8"):
        module.Lock("cart")
    monkeypatch.setenv("DIBS_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(NotConfigured, match=r"none\.toml, which can't be read: No such file"):
        module.Lock("cart")
    with pytest.raises(NotConfigured, match="can't be read"):
        dibs.sync.connect()


def test_nothing_is_read_that_the_environment_does_not_name(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "dibs.toml").write_text("ttl = 50")
    monkeypatch.chdir(tmp_path)
    assert module.Lock("cart").config.ttl == 30
    monkeypatch.setenv("DIBS_CONFIG", "")
    assert module.Lock("cart").config.ttl == 30
    monkeypatch.setenv("DIBS_CONFIG", "dibs.toml")
    assert module.Lock("cart").config.ttl == 50


def test_it_is_read_once(module: Any, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("ttl = 50")
    assert module.Lock("cart").config.ttl == 50
    path.unlink()
    assert module.Lock("cart").config.ttl == 50


def test_the_file_names_the_default_store(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(f'url = "sqlite:///{tmp_path}/file.db"\ncall_timeout = "3s"')
    client = dibs.sync.connect()
    assert client.url.endswith("/file.db")
    assert client.session.thread_runtime().call_timeout == 3
    monkeypatch.setenv("DIBS_URL", f"sqlite:///{tmp_path}/variable.db")
    monkeypatch.setenv("DIBS_CONNECT_TIMEOUT", "4s")
    with dibs.sync.Lock("a"):
        runtime = dibs.sync.connect().session.thread_runtime()
        assert dibs.sync.connect().url.endswith("/variable.db")
    assert (runtime.connect_timeout, runtime.call_timeout) == (4, 3)


def test_a_url_that_nobody_serves_tells_where_it_stands(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write('url = "mongodb://me:secret@h"\ncall_timeout = "soon"')
    with pytest.raises(ValueError, match=re.escape(f"{path}: call_timeout is 'soon': ")):
        dibs.sync.connect()
    path = write('url = "mongodb://me:secret@h"')
    with pytest.raises(NotConfigured, match=re.escape(f"{path}: url: 'mongodb://me:***")):
        dibs.sync.connect()
    monkeypatch.setenv("DIBS_URL", "mongodb://h")
    with pytest.raises(NotConfigured, match=r"^DIBS_URL: 'mongodb://h' is not the URL of a store"):
        dibs.sync.connect()


def test_who_has_no_file_never_loads_a_reader_of_toml() -> None:
    script = "import sys; from dibs.sync import Lock; Lock('a'); print('tomllib' in sys.modules)"
    assert run_script(script) == ["False"]


@pytest.mark.multiprocess
def test_a_shell_command_goes_by_the_file(write: Write, tmp_path: Path) -> None:
    write(f'url = "sqlite:///{tmp_path}/file.db"\n[lock.cart]\nnote = "by the file"')
    lines = run_script(
        """
        import subprocess, sys
        command = [sys.executable, "-m", "dibs", "run", "cart", "--", *sys.argv[1:]]
        print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        """,
        *(sys.executable, "-m", "dibs", "show", "cart"),
    )
    assert "by the file" in "\n".join(lines)
    assert (tmp_path / "file.db").exists()


PAGE = "configuration.md"


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("number", "told"),
    [(0, "as it is set"), (1, "in two stores, with token"), (2, "about a microsecond")],
)
def test_an_example_works(number: int, told: str, tmp_path: Path) -> None:
    file = tmp_path / "dibs.toml"
    (toml,) = blocks(PAGE, "toml")
    file.write_text(toml, "utf-8")
    settings = {"DIBS_CONFIG": str(file), "DIBS_LOCK__CART__WAIT": "3s"}
    assert told in run(blocks(PAGE)[number], tmp_path, **settings)


def test_every_example_is_tried() -> None:
    assert len(blocks(PAGE)) == 3


SETTINGS = {
    *(key for kind in (LockConfig, LeaderConfig, TaskLockConfig) for key in kind._readers),
    *STORE_KEYS,
}


@pytest.mark.parametrize("key", sorted(SETTINGS))
def test_every_setting_is_told(key: str) -> None:
    page = (DOCS / PAGE).read_text("utf-8")
    table = page.partition("## Settings")[2].partition("## Stores")[0]
    assert f"`{key}`" in table
