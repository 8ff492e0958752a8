"""What is wrong with a request's parameters is told in plain words."""

import pytest

from dibs.server.api.parameters import read_query
from dibs.server.api.problems import ApiProblem
from dibs.server.api.schemas import AcquireQuery, ReleaseQuery, Strict


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("ttl=30s", "`ttl` must be a number of seconds, such as 30 or 2.5"),
        ("wait=-1", "`wait` must be a number of seconds, 0 or more"),
        ("kind=foo", "`kind` must be one of leader, lock, rwlock, semaphore, tasklock"),
        ("mode=x", "`mode` must be one of read, write"),
        ("id=short", "`id` must be 22 to 64 letters, digits, - and _, drawn at random"),
        ("capacity=1.5", "`capacity` must be a whole number, 1 at least, 1000000 at most"),
        ("note=%00", "`note` must be a text of 1024 letters at most"),
        ("ttl=30&ttl=31", "'ttl' is given more than once"),
        ("tll=3", "unknown parameter `tll`; allowed parameters: ttl, client-id, id"),
        ("note=%ff", "cannot parse the query"),
    ],
)
def test_what_is_wrong_is_told(query: str, told: str) -> None:
    with pytest.raises(ApiProblem) as caught:
        read_query(query.encode(), AcquireQuery)
    assert told in str(caught.value.detail)
    assert "regex" not in str(caught.value.detail)


@pytest.mark.parametrize(
    "query", ["kind=null", "mode=null", "capacity=NULL", "units=null", "mode=%6eull"]
)
def test_null_is_no_value(query: str) -> None:
    with pytest.raises(ApiProblem):
        read_query(query.encode(), AcquireQuery)
    assert read_query(b"id=x&reason=null", ReleaseQuery).reason == "null", "a text may say so"


def test_true_or_false() -> None:
    with pytest.raises(ApiProblem) as caught:
        read_query(b"force=perhaps", ReleaseQuery)
    assert caught.value.detail == "`force` must be true or false"


class Needy(Strict, frozen=True):
    """Parameters of which one has no default."""

    id: str
    n: int = 1


def test_what_has_to_be_there_is_named() -> None:
    with pytest.raises(ApiProblem) as caught:
        read_query(b"n=3", Needy)
    assert caught.value.detail == "missing parameter `id`"


def test_what_is_right_is_read() -> None:
    assert read_query(b"ttl=2.5&kind=lock&client-id=a+b%20c", AcquireQuery).client_id == "a b c"
    assert read_query(b"&ttl=2.5&&", AcquireQuery).ttl == 2.5
