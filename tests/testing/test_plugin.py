"""The pytest plugin, as a project that uses it sees it."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]

INSTALLED = bool([point for point in entry_points(group="pytest11") if point.name == "dibs"])


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with the plugin on, in which pytest runs apart from us."""
    options = "" if INSTALLED else "-p dibs.testing.plugin"
    pytester.makeini(
        f"[pytest]\naddopts = {options}\nasyncio_mode = auto\n"
        "asyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    return pytester


def outcomes(project: pytest.Pytester, source: str) -> tuple[pytest.RunResult, dict[str, int]]:
    project.makepyfile(source)
    result = project.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist")
    return result, result.parseoutcomes()


def passed(project: pytest.Pytester, source: str, count: int) -> None:
    result, found = outcomes(project, source)
    assert found == {"passed": count}, result.stdout.str()


def test_bare_locks_of_both_worlds_use_the_client(project: pytest.Pytester) -> None:
    passed(
        project,
        """
        import dibs, dibs.sync

        async def test_async(dibs_client):
            async with dibs.Lock("a") as lease:
                assert await dibs_client.lock("a").locked()
                assert lease.token

        def test_blocking(dibs_client):
            with dibs.sync.Lock("a"):
                assert dibs.sync.Lock("a").try_acquire() is None

        def test_stores_are_fresh(dibs_client):
            assert not dibs.sync.Lock("a").locked()
        """,
        3,
    )


def test_the_clock_steps_the_keeper_too(project: pytest.Pytester) -> None:
    passed(
        project,
        """
        from dibs.sync import Lock

        def test_renewed(dibs_client, dibs_clock):
            with Lock("a", ttl=30) as lease:
                dibs_clock.advance(600)
                assert not lease.lost
                assert lease.remaining > 10

        def test_not_renewed(dibs_client, dibs_clock):
            lease = Lock("a", ttl=30, auto_renew=False).acquire()
            dibs_clock.advance(29)
            assert lease.lost
            assert lease.reason == "expired"
            dibs_clock.advance(2)
            assert not Lock("a").locked()
        """,
        2,
    )


def test_expire_reaches_the_holder(project: pytest.Pytester) -> None:
    passed(
        project,
        """
        import asyncio, pytest
        from dibs import Lock, LeaseLost
        import dibs.sync

        async def test_async(dibs_client, dibs_expire):
            lock = Lock("a")
            with pytest.raises(LeaseLost):
                async with lock:
                    assert dibs_expire(lock) == 1
                    await asyncio.sleep(10)
            assert not await lock.locked()

        def test_blocking(dibs_client, dibs_expire):
            lost = []
            lease = dibs.sync.Lock("a", on_lost=lost.append).acquire()
            dibs_expire(lease)
            assert lease.lost and lost == [lease]
            with pytest.raises(LeaseLost):
                lease.ensure()
            assert dibs_expire(lease) == 0
        """,
        2,
    )


def test_steal_puts_somebody_else_in(project: pytest.Pytester) -> None:
    passed(
        project,
        """
        import pytest
        from dibs.sync import Lock

        @pytest.mark.dibs_may_leak
        def test_blocking(dibs_client, dibs_steal):
            lock = Lock("a")
            lease = lock.acquire()
            token = dibs_steal(lock)
            assert token > lease.token
            assert lease.lost
            assert lock.try_acquire() is None
            assert [holder.owner for holder in lock.status().holders] == ["thief"]
        """,
        1,
    )


LEAK = """
    import dibs, dibs.sync, pytest

    kept = []

    {mark}
    def test_blocking(dibs_client):
        kept.append(dibs.sync.Lock("forgotten").acquire())

    {mark}
    async def test_async(dibs_client):
        kept.append(await dibs.Lock("forgotten").acquire())
"""


def test_a_leak_fails_the_test(project: pytest.Pytester) -> None:
    result, found = outcomes(project, LEAK.format(mark=""))
    assert found == {"failed": 2}, result.stdout.str()
    result.stdout.fnmatch_lines(["*lock 'forgotten', held by *"])


def test_a_marked_test_may_leak(project: pytest.Pytester) -> None:
    passed(project, LEAK.format(mark="@pytest.mark.dibs_may_leak"), 2)


def test_a_failure_is_not_hidden_by_its_leak(project: pytest.Pytester) -> None:
    result, found = outcomes(project, LEAK.format(mark="") + "        raise LookupError('mine')\n")
    assert found == {"failed": 2}, result.stdout.str()
    result.stdout.fnmatch_lines(["*LookupError: mine*"])


def test_loading_the_plugin_imports_no_client() -> None:
    code = (
        "import sys, dibs.testing.plugin;"
        "print([m for m in sys.modules if m.startswith('dibs.testing.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['dibs.testing.plugin']"
