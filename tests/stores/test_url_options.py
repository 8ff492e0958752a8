"""Options of a store's URL: the same errors for all stores, and no secret in any of them."""

import pytest

from dibs.errors import NotConfigured
from dibs.stores.redact import redacted
from dibs.stores.registry import store_for

SECRET = "s3cr3t"

DURATION = "must be a duration such as 60s, of less than a day"

OPTIONS = {
    # each store's URL: an option that takes text, one that takes something else, and what it must be
    "https://h": ("cafile", "insecure", "must be true or false"),
    "sqlite:///x": ("timeout", "unsafe_network_fs", "must be true or false"),
    "redis://h": ("sentinel", "restart_holdoff", DURATION),
    "valkeys://h": ("ssl_certfile", "ssl_cert_reqs", "must be required or none"),
    "postgresql://h/x": ("pooler", "migrate", "must be yes or no"),
    "etcds://h": ("certfile", "skew", DURATION),
    "kubernetes://a": ("context", "skew", DURATION),
    "nats://h": ("bucket", "replicas", "must be a number"),
    "s3://bucket": ("region", "skew", DURATION),
    "temporal://h/x": ("profile", "tls", "must be true or false"),
}


def refusal(url: str) -> str:
    with pytest.raises(NotConfigured) as refused:
        store_for(url)
    return str(refused.value)


@pytest.mark.parametrize("url", OPTIONS)
def test_an_unknown_option_is_refused_with_the_one_that_was_meant(url: str) -> None:
    option, _, _ = OPTIONS[url]
    told = refusal(f"{url}?{option[:-1]}={SECRET}").partition(": ")[2]
    assert f"{option[:-1]}" in told
    assert f"did you mean {option}=?" in told
    assert SECRET not in told


@pytest.mark.parametrize("url", [url for url in OPTIONS if not url.startswith("postgresql")])
def test_without_a_close_one_all_are_listed(url: str) -> None:
    told = refusal(f"{url}?xyz=red")
    assert "there is no option xyz=; known are " in told
    assert all(option in told for option in OPTIONS[url][:2])


@pytest.mark.parametrize("url", OPTIONS)
def test_what_cannot_be_read(url: str) -> None:
    option, other, wanted = OPTIONS[url]
    assert f"{option}= " in refusal(f"{url}?{option}=")
    assert f"{other}= {wanted}" in refusal(f"{url}?{other}=maybe")
    assert f"{other}= {wanted}" in refusal(f"{url}?{other}=")


@pytest.mark.parametrize("url", OPTIONS)
def test_an_option_stands_once(url: str) -> None:
    option, _, _ = OPTIONS[url]
    value = {"timeout": "3", "pooler": "yes"}.get(option, "a")
    assert f"{option}= is given twice" in refusal(f"{url}?{option}={value}&{option}={value}")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:///x?timeout=0", "timeout= must be more than 0 seconds"),
        ("sqlite:///x?timeout=-1", f"timeout= {DURATION}"),
        ("sqlite:///x?timeout=nan", f"timeout= {DURATION}"),
        ("redis://h?socket_timeout=24h", f"socket_timeout= {DURATION}"),
        ("redis://h?db=-1", "db= must be a number"),
        ("redis://h?db=x", "db= must be a number"),
        ("nats://h?tls=off", "tls= must be on"),
        ("postgresql://db/x?pooler=maybe", "pooler= must be auto, yes or no"),
        ("temporal://h/x?task_queue=%20", "task_queue= is empty"),
        ("https://h?cafile=", "cafile= is empty"),
    ],
)
def test_values_of_each_kind(url: str, told: str) -> None:
    assert told in refusal(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis://app:{SECRET}@h/0", "redis://app:***@h/0"),
        (f"redis://:{SECRET}/@{SECRET}@h/0?db=1", "redis://:***@h/0?db=1"),
        (f"redis://h?sentinel=x&sentinel_password={SECRET}&db=1",
         "redis://h?sentinel=x&sentinel_password=***&db=1"),
        (f"postgresql://app@h/x?PASSWORD={SECRET}", "postgresql://app@h/x?PASSWORD=***"),
        (f"postgresql://h/x?sslpassword={SECRET}&sslkey=k", "postgresql://h/x?sslpassword=***&sslkey=k"),
        (f"https://user:{SECRET}@h/base", "https://***@h/base"),
        (f"HTTP://{SECRET}@h", "HTTP://***@h"),
        ("https://h:8443/a@b", "https://h:8443/a@b"),
        ("https://h:8443?key_file=k", "https://h:8443?key_file=k"),
        (f"nats://{SECRET}@h", "nats://***@h"),
        (f"nats://locks:{SECRET}@h", "nats://locks:***@h"),
        (f"temporal://{SECRET}@h/x", "temporal://***@h/x"),
        (f"temporal://h/x?api_key={SECRET}", "temporal://h/x?api_key=***"),
        (f"temporal://h/x?key={SECRET}", "temporal://h/x?key=***"),
        ("etcd://a:1,b:2/x", "etcd://a:1,b:2/x"),
        (repr(f"redis://h?sentinel_password={SECRET}"), "'redis://h?sentinel_password=***'"),
    ],
)  # fmt: skip
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert redacted(url) == shown
