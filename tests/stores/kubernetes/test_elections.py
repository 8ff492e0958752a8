"""Elections on one Lease, with electors of client-go: never two leaders, and hand-over both ways."""

import random
import time
from itertools import pairwise
from statistics import median

import pytest

from tests.stores.kubernetes.conftest import Cluster
from tests.stores.kubernetes.electors import Contest, Term, overlaps


def gaps(terms: list[Term], kind: str, *, killed: bool) -> list[float]:
    """Seconds from the end of each term of this kind to the next one."""
    return [
        two.start - one.end
        for one, two in pairwise(terms)
        if one.kind == kind and one.killed is killed
    ]


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.multiprocess
@pytest.mark.parametrize(("ttl", "kills"), [(3.0, [False, False, True, True]), (2.5, [True, True])])
def test_a_leader_of_each_hands_over_to_the_other(
    cluster: Cluster, ttl: float, kills: list[bool]
) -> None:
    with Contest(cluster, "web.example.com", ttl, ["go", "dibs"]) as contest:
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
    for kind in ("go", "dibs"):
        assert all(gap < 2.5 for gap in gaps(terms, kind, killed=False)), terms


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ttl", [3.0, 2.5, 0.9])
def test_many_terms_of_both(
    cluster: Cluster, ttl: float, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(ttl)
    with Contest(cluster, "web", ttl, ["go", "go", "dibs", "dibs"]) as contest:
        for _ in range(105):
            leader = contest.leader(within=2 * ttl + 10)
            time.sleep(draw.uniform(0.05, 0.5))
            if leader.leads:
                contest.end(leader, kill=draw.random() < 0.25)
                contest.begin(leader.kind)
    terms = contest.terms
    assert not overlaps(terms)
    with capsys.disabled():
        for kind in ("go", "dibs"):
            for killed in (False, True):
                found = gaps(terms, kind, killed=killed)
                print(f"\n{ttl} s, {kind}, killed={killed}: {len(found)} terms", end="")
                if found:
                    print(
                        f", then {min(found):.2f}, {median(found):.2f}, {max(found):.2f} s", end=""
                    )
