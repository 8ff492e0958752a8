"""Making a primitive is nearly free: a client reads the settings once, and checks options once."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import LockConfig, UnsafeTiming, settings

MAKERS: dict[str, Callable[[Any], Any]] = {
    "lock": lambda client: client.lock("a", ttl="20s"),
    "semaphore": lambda client: client.semaphore("a", 3, wait=5),
    "rwlock": lambda client: client.rwlock("a"),
    "tasklock": lambda client: client.task_lock("a", 1, 60),
    "leader": lambda client: client.leader_election("a", ttl=20),
}


class Reads:
    """Counts what is read and checked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings, self.configs = 0, 0
        read, make = settings.settings_for_all, settings.ConfigCache._read

        def reading(*about: Any) -> Any:
            self.settings += 1
            return read(*about)

        def making(*about: Any) -> Any:
            self.configs += 1
            return make(*about)

        monkeypatch.setattr("dibs.settings.settings_for_all", reading)
        monkeypatch.setattr(settings.ConfigCache, "_read", making)


@pytest.fixture(params=[dibs, dibs.sync], ids=["async", "sync"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    return request.param.connect("memory://")  # type: ignore[no-any-return]  # never used


@pytest.mark.parametrize("kind", MAKERS)
def test_settings_are_read_and_options_checked_once(
    client: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(monkeypatch)
    made = [MAKERS[kind](client) for _ in range(100)]
    assert reads.settings == 1
    assert reads.configs <= 1
    assert len({id(each) for each in made}) == 100


def test_another_client_reads_them_again(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.lock("a").config.ttl == 30
    monkeypatch.setenv("DIBS_TTL", "7s")
    assert client.lock("a").config.ttl == 30
    assert type(client)(dibs.connect("memory://").session).lock("a").config.ttl == 7


def test_names_with_settings_of_their_own_have_them(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_LEADER__MAIN__TTL", "33s")
    monkeypatch.setenv("DIBS_TTL", "7s")
    assert client.leader_election("main").ttl == 33
    assert client.leader_election("other").ttl == 15
    assert client.lock("main").config.ttl == 7


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({"priority": 1}, {"priority": True}),
        ({"priority": 1}, {"priority": 1.0}),
        ({"auto_renew": True}, {"auto_renew": 1}),
        ({"ttl": 1}, {"ttl": True}),
        ({"note": "a"}, {"note": ["a"]}),
    ],
)
def test_what_equals_a_checked_option_is_checked_too(
    client: Any, right: dict[str, Any], wrong: dict[str, Any]
) -> None:
    client.lock("a", **right)
    for _ in range(2):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            client.lock("a", **wrong)


def test_a_wrong_option_is_refused_each_time(client: Any) -> None:
    for _ in range(2):
        with pytest.raises(UnsafeTiming):
            client.lock("a", ttl=0.001)
        with pytest.raises(UnsafeTiming):
            client.task_lock("a", 61, 60)


def test_many_different_options_are_not_all_remembered(client: Any) -> None:
    configs = [client.lock("a", note=str(number)).config for number in range(1000)]
    assert [config.note for config in configs] == [str(number) for number in range(1000)]
    known = client._settings["lock"]
    assert known._cached.cache_info().currsize <= settings.MOST_CONFIGS
    assert client.lock("a").config == LockConfig()
