"""Elections on one Lease, with electors of client-go and the official Python client.

There are never two leaders, and each hands over to the other.
"""

import random
import time
from itertools import pairwise
from statistics import median

import pytest

from tests.stores.kubernetes.configs import Cluster
from tests.stores.kubernetes.electors import Contest, Term, overlaps


def gaps(terms: list[Term], kind: str, *, killed: bool) -> list[float]:
    """Seconds from the end of each term of this kind to the next one."""
    return [
        two.start - one.end
        for one, two in pairwise(terms)
        if one.kind == kind and one.killed is killed
    ]


def take_turns(contest: Contest, ttl: float, kills: list[bool]) -> list[Term]:
    """Let one of each kind stand. End the leader again and again; the other one is next each time."""
    last = ""
    for kill in [*kills, False]:
        leader = contest.leader(within=2 * ttl + 5)
        assert leader.kind != last, "the other one was waiting"
        if last:
            contest.begin(last)
        last = leader.kind
        contest.all_stand()
        time.sleep(0.2 + ttl / 3)  # a renewal or two
        contest.end(leader, kill=kill)
    contest.leader(within=2 * ttl + 5)
    terms = contest.terms
    assert not overlaps(terms), terms
    assert len(terms) == len(kills) + 1
    return terms


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("ttl", "kills"),
    [
        (1.0, [False, True]),
        pytest.param(3.0, [False, False, True, True], marks=pytest.mark.long),
        pytest.param(2.5, [True, True], marks=pytest.mark.long),
    ],
)
def test_a_leader_of_each_hands_over_to_the_other(
    cluster: Cluster, ttl: float, kills: list[bool]
) -> None:
    with Contest(cluster, "web.example.com", ttl, ["go", "dibs"]) as contest:
        terms = take_turns(contest, ttl, kills)
    for kind in ("go", "dibs"):
        assert all(gap < 2.5 for gap in gaps(terms, kind, killed=False)), terms


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.multiprocess
@pytest.mark.parametrize("kills", [[], pytest.param([True, True], marks=pytest.mark.long)])
def test_so_does_one_of_the_official_python_client(cluster: Cluster, kills: list[bool]) -> None:
    """It waits for its own `lease_duration`, here the ttl, and never gives a Lease up."""
    with Contest(cluster, "web", 4.0, ["python", "dibs"]) as contest:
        terms = take_turns(contest, 4.0, kills)
    assert {term.kind for term in terms} <= {"python", "dibs"}
    assert all(gap < 2.5 for gap in gaps(terms, "dibs", killed=False)), terms


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("kinds", "ttl", "count"),
    [
        (["go", "go", "dibs", "dibs"], 3.0, 105),
        (["go", "go", "dibs", "dibs"], 2.5, 105),
        (["go", "go", "dibs", "dibs"], 0.9, 105),
        (["python", "python", "dibs"], 4.0, 65),
        (["python", "python", "dibs", "dibs"], 3.5, 65),
        (["python", "go", "dibs"], 4.0, 65),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_many_terms_of_all(
    cluster: Cluster, kinds: list[str], ttl: float, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(ttl)
    with Contest(cluster, "web", ttl, kinds) as contest:
        for _ in range(count):
            leader = contest.leader(within=2 * ttl + 10)
            time.sleep(draw.uniform(0.05, 0.5))
            if leader.leads:
                contest.end(leader, kill=draw.random() < 0.3)
                contest.begin(leader.kind)
    terms = contest.terms
    assert not overlaps(terms)
    assert len(terms) >= 60
    assert sum(term.killed for term in terms) >= 15
    with capsys.disabled():
        for kind in sorted(set(kinds)):
            for killed in (False, True):
                found = gaps(terms, kind, killed=killed)
                print(f"\n{ttl} s, {kind}, killed={killed}: {len(found)} terms", end="")
                if found:
                    print(
                        f", then {min(found):.2f}, {median(found):.2f}, {max(found):.2f} s", end=""
                    )
