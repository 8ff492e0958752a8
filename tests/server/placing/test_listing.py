"""The list of placements: whatever operators write into settings, no two servers mean different stores."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as chosen
from hypothesis import strategies as st
from msgspec import structs

from dibs.errors import NotConfigured
from dibs.server.config import Placement, read_config
from dibs.server.placing.address import address_of, is_beside, is_of_machine
from dibs.server.placing.listing import Listed, Listing, Own, check_each_once, joined
from dibs.server.placing.placement import Place
from dibs.server.placing.starting import own_of

FRESH = 3.0
ADDRESSES = {"at-1": 1, "also-at-1": 1, "at-2": 2, "at-3": 3}
"""Which store is at each."""


def own(name: str, address: str, was: str = "", region: str = "") -> Own:
    said = (was,) if was else ()
    return Own(Place(name, "", region), address, said, nameless=name == "default")


# ---- any settings, started and ended in any order -------------------------------------------------

type Settings = tuple[Own, ...]
type Join = Callable[[Listing | None, Settings, float, dict[str, str]], Listing]

placements = st.builds(
    own,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(sorted(ADDRESSES)),
    st.sampled_from(["", *sorted(ADDRESSES)]),
)
"""What they say of where a store was may be left from another time, and so be wrong."""
settings = st.one_of(
    st.sampled_from(sorted(ADDRESSES)).map(lambda address: (own("default", address),)),
    st.lists(placements, min_size=1, max_size=3, unique_by=lambda each: each.place.name).map(tuple),
)
events = st.lists(
    st.one_of(
        st.tuples(st.just("start"), settings),
        st.tuples(st.just("end"), st.integers(0, 3)),
        st.tuples(st.just("move"), st.sampled_from(["x/", "y/", ""]), st.integers(0, 5)),
    ),
    max_size=12,
)


@dataclass
class Service:
    """Its list, where things live by it, and where they were put in truth."""

    join: Join
    listing: Listing | None = None
    running: list[Settings] = field(default_factory=list)
    homes: dict[str, str] = field(default_factory=dict)
    truth: dict[str, int] = field(default_factory=dict)

    def start(self, theirs: Settings) -> None:
        if any(self.is_false(each) for each in theirs):
            return
        used = {place: directory for directory, place in self.homes.items()}
        try:
            check_each_once(theirs)
            self.listing = self.join(self.listing, theirs, FRESH, used)
        except NotConfigured:
            return
        self.running.append(theirs)
        self.truth.setdefault("elsewhere", self.store_of(theirs, self.listing.default) or 0)

    def is_false(self, own: Own) -> bool:
        """It says of where the store is now that it is another one: nobody could know better."""
        places = () if self.listing is None else self.listing.places
        newest = {each.name: each.stores[-1] for each in places}.get(own.place.name)
        return newest in own.was and ADDRESSES[newest or ""] != ADDRESSES[own.address]

    def end(self, number: int) -> None:
        if number < len(self.running):
            self.running.pop(number)

    def move(self, directory: str, number: int) -> None:
        """As one server's mover does it, which settles where everything lives by default too."""
        if self.listing is None or not self.running or self.listing.is_lone:
            return
        place = self.listing.places[number % len(self.listing.places)].name
        store = self.store_of(self.running[0], place)
        if store is None:
            return
        self.homes[directory], self.truth[directory] = place, store
        if not directory:
            self.listing = structs.replace(self.listing, default=place)
            self.truth["elsewhere"] = store

    def store_of(self, theirs: Settings, place: str) -> int | None:
        """Where a server looks for what lives at a placement; None: it says that it lacks that."""
        assert self.listing is not None
        (listed,) = (each for each in self.listing.places if each.name == place)
        here = {ADDRESSES[each.address] for each in theirs if each.address in listed.stores}
        assert len(here) <= 1, "one name, two stores"
        return next(iter(here), None)

    def check(self) -> None:
        """All servers that run look for everything where it was put."""
        if self.listing is None:
            return
        for theirs in self.running:
            for directory, place in {**self.homes, "elsewhere": self.listing.default}.items():
                assert self.store_of(theirs, place) in (None, self.truth[directory])


def played(join: Join, what: list[tuple[object, ...]]) -> None:
    service = Service(join)
    for name, *values in what:
        getattr(service, str(name))(*values)
        service.check()


@given(events)
def test_no_two_servers_mean_different_stores(what: list[tuple[object, ...]]) -> None:
    played(joined, what)


def last_wins(
    listing: Listing | None, theirs: Settings, fresh: float, used: dict[str, str]
) -> Listing:
    """A mistake: settings are believed, and what they lack is dropped."""
    places = tuple(Listed(each.place.name, (each.address,)) for each in theirs)
    return Listing(places, places[0].name, fresh)


def believes_any_address(
    listing: Listing | None, theirs: Settings, fresh: float, used: dict[str, str]
) -> Listing:
    """A mistake: a name's new address is taken for the same store."""
    known = {each.name: each.stores[-1] for each in listing.places} if listing else {}
    said = tuple(replace(each, was=(known.get(each.place.name, ""),)) for each in theirs)
    return joined(listing, said, fresh, used)


def believes_old_addresses(
    listing: Listing | None, theirs: Settings, fresh: float, used: dict[str, str]
) -> Listing:
    """A mistake: where a store was may be an address of long ago, which is another's by now."""
    known = {each.name: each.stores for each in listing.places} if listing else {}
    said = tuple(
        replace(each, was=known[name][-1:]) if {*each.was} & {*known.get(name, ())} else each
        for each in theirs
        for name in (each.place.name,)
    )
    return joined(listing, said, fresh, used)


@pytest.mark.once
@pytest.mark.parametrize("mistake", [last_wins, believes_any_address])
def test_planted_mistakes_are_found(mistake: Join) -> None:
    @chosen(max_examples=1000, database=None, deadline=None, report_multiple_bugs=False)
    @given(events)
    def play(what: list[tuple[object, ...]]) -> None:
        played(mistake, what)

    with pytest.raises((AssertionError, ValueError)):
        play()


def test_an_address_of_long_ago_is_not_believed() -> None:
    what: list[tuple[object, ...]] = [
        ("start", (own("a", "at-1"),)),
        ("start", (own("a", "also-at-1", was="at-1"),)),
        ("start", (own("a", "at-2", was="at-1"),)),
    ]
    played(joined, what)
    with pytest.raises(AssertionError):
        played(believes_old_addresses, what)


# ---- what is told ---------------------------------------------------------------------------------


def after(*starts: Settings) -> Listing:
    listing: Listing | None = None
    for theirs in starts:
        listing = joined(listing, theirs, FRESH, {})
    assert listing is not None
    return listing


def test_the_first_server_says_where_things_live_and_others_only_add() -> None:
    listing = after((own("a", "at-1"), own("b", "at-2")), (own("b", "at-2"), own("a", "at-1")))
    assert (listing.default, [each.name for each in listing.places]) == ("a", ["a", "b"])
    listing = after((own("a", "at-1"),), (own("c", "at-3"), own("a", "at-1")))
    assert (listing.default, listing.was_lone) == ("a", True)
    assert not after((own("a", "at-1"), own("b", "at-2"))).was_lone


def test_a_name_stays_with_its_store_and_the_way_out_is_told() -> None:
    listing = after((own("a", "at-1"), own("b", "at-2")))
    with pytest.raises(
        NotConfigured, match=r"placement b .* is at-3, .* know it at at-2.*was = 'at-2'"
    ):
        joined(listing, (own("a", "at-1"), own("b", "at-3")), FRESH, {})
    with pytest.raises(NotConfigured, match="written down as the placement a"):
        joined(listing, (own("a2", "at-1"), own("b", "at-2")), FRESH, {})
    with pytest.raises(NotConfigured, match="are one store"):
        check_each_once((own("a", "at-1"), own("b", "at-1")))
    moved = joined(listing, (own("a", "also-at-1", was="at-1"), own("b", "at-2")), FRESH, {})
    assert moved.places[0].stores == ("at-1", "also-at-1")
    assert joined(moved, (own("a", "at-1"), own("b", "at-2")), FRESH, {}) == moved, (
        "both ways lead there"
    )


def test_where_it_was_is_where_it_was_last() -> None:
    listing = after((own("a", "at-1"),), (own("a", "also-at-1", was="at-1"),))
    with pytest.raises(NotConfigured, match="know it at also-at-1"):
        joined(listing, (own("a", "at-3", was="at-1"),), FRESH, {})
    assert joined(listing, (own("a", "also-at-1", was="at-1"),), FRESH, {}) == listing, "left in"
    assert joined(listing, (own("a", "at-1", was="at-3"),), FRESH, {}) == listing, "as before"


def test_where_it_was_may_be_said_as_it_is_shown() -> None:
    old = own_of(Placement(name="a", url="sqlite:////tmp/a.db"), nameless=False, machine="m")
    was = old.address
    assert was == "sqlite:///tmp/a.db on m"
    for said in (was, "sqlite:////tmp/a.db"):
        new = Placement(name="a", url="sqlite:////tmp/b.db", was=said)
        assert len(after((old,), (own_of(new, nameless=False, machine="m"),)).stores) == 2


def test_what_is_in_use_has_to_be_there() -> None:
    listing = after((own("a", "at-1"), own("b", "at-2")))
    with pytest.raises(NotConfigured, match=r"lack the placement b \(at-2\), where shop/ lives"):
        joined(listing, (own("a", "at-1"),), FRESH, {"b": "shop/"})
    with pytest.raises(NotConfigured, match=r"lack the placement a .* nowhere in particular"):
        joined(listing, (own("b", "at-2"),), FRESH, {})
    assert joined(listing, (own("a", "at-1"),), FRESH, {}) == listing, "the name stays taken"


def test_a_lone_store_gets_a_name_when_somebody_gives_it_one() -> None:
    listing = after((own("default", "at-1"),), (own("b", "at-2"), own("a", "at-1")))
    assert (listing.default, [each.name for each in listing.places]) == ("a", ["a", "b"])
    assert joined(listing, (own("default", "at-1"),), FRESH, {}) == listing, (
        "as it was started before"
    )
    with pytest.raises(NotConfigured, match="lack the placement a"):
        joined(listing, (own("default", "at-3"),), FRESH, {})
    with pytest.raises(NotConfigured, match="store of these settings is at-3"):
        joined(after((own("default", "at-1"),)), (own("default", "at-3"),), FRESH, {})


def test_the_longest_time_that_anybody_goes_on_counts_and_labels_are_the_last() -> None:
    listing = joined(after((own("a", "at-1"),)), (own("a", "at-1", region="DE"),), 9.0, {})
    assert (listing.fresh, listing.places[0].region) == (9.0, "DE")
    assert joined(listing, (own("a", "at-1", region="DE"),), 1.0, {}) == listing


def test_several_stores_need_records_that_do_not_follow_their_order() -> None:
    both = [{"name": "a", "url": "redis://me:hunter2@h"}, {"name": "b", "url": "redis://i"}]
    with pytest.raises(NotConfigured, match=r"records = .*redis://me:\*\*\*@h") as caught:
        read_config(None, {"placement": both}, {})
    assert "hunter2" not in str(caught.value)
    assert read_config(None, {"placement": both, "records": "redis://h"}, {}).records == "redis://h"
    assert read_config(None, {"placement": both[:1]}, {}).records_url == both[0]["url"]


# ---- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://h", "rediss://me:secret@H:6379/0?ssl_cert_reqs=none&socket_timeout=3"),
        ("redis://h/2", "valkey://:p?w/@h:6379?db=2"),
        ("redis://b:2,a:1?cluster=true", "redis://a:1,b:2?cluster=true"),
        ("postgres://u:p@h/db", "postgresql://v@h:5432/db?sslmode=require&pooler=yes"),
        ("postgresql://u:p@h", "postgresql+psycopg://h/u"),
        ("sqlite:////tmp/x/../y.db", "sqlite:////tmp/y.db?timeout=3"),
        ("temporal://h/ns?tls=true", "temporal://h:7233/ns"),
        ("postgresql://H:5433/db", "postgresql:///db?host=h&port=5433"),
        ("etcd://u:p@h1,h2:2379/x?skew=2", "etcds://h2,h1/x?cafile=ca.pem"),
        ("postgresql://h/d%62", "postgresql://h?dbname=db"),
        ("postgresql://b:2,a:1/db", "postgresql:///db?host=a,b&port=1,2"),
        ("postgresql://[::1]/db", "postgresql://[::1]:5432/db"),
        (
            "postgresql:///db?host=a,b&hostaddr=192.0.2.1,192.0.2.2&port=1,2",
            "postgresql:///db?host=b,a&hostaddr=192.0.2.2,192.0.2.1&port=2,1",
        ),
    ],
)
def test_ways_to_one_store(one: str, other: str) -> None:
    assert address_of(one) == address_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://h/0", "redis://h/1"),
        ("redis://h", "redis://i"),
        ("redis://h:26379?sentinel=a", "redis://h:26379?sentinel=b"),
        ("redis:///run/a.sock", "redis:///run/b.sock"),
        ("postgresql://u@h", "postgresql://v@h"),
        ("postgresql://h/db", "postgresql://h/db?options=-csearch_path%3Dx"),
        ("temporal://h/ns?task_queue=a", "temporal://h/ns"),
        ("memory://A", "memory://a"),
        (
            "postgresql:///db?host=a,b&hostaddr=192.0.2.1,192.0.2.2&port=1,2",
            "postgresql:///db?host=b,a&hostaddr=192.0.2.1,192.0.2.2&port=2,1",
        ),
    ],
)
def test_two_stores(one: str, other: str) -> None:
    assert address_of(one) != address_of(other)


HERE_ONLY = [
    "sqlite:////tmp/a.db",
    "redis://localhost",
    "redis://me:p@127.0.0.2:1/3",
    "redis://[::1]:6379/0",
    "redis://:6379",
    "redis://0.0.0.0:6379",
    "redis:///run/a.sock",
    "postgresql:///db",
    "postgresql://LOCALHOST:5432/db",
    "postgresql://h,127.0.0.1/db",
    "postgresql:///db?host=/run/postgresql",
    "postgresql://%2Frun%2Fpostgresql/db",
    "postgresql:///db?host=@abstract",
    "postgresql://[::1]/db",
    "postgresql:///db?hostaddr=127.0.0.1",
    "temporal://localhost:7233/ns",
]


@pytest.mark.parametrize("url", HERE_ONLY)
@pytest.mark.usefixtures("variables")
def test_what_is_another_store_on_each_machine(url: str) -> None:
    one, two = (
        own_of(Placement(name="a", url=url), nameless=False, machine=each) for each in ("m", "n")
    )
    assert one.address != two.address
    with pytest.raises(NotConfigured, match=r"another one on each machine.* was = '.* on m'"):
        joined(after((one,)), (two,), FRESH, {})
    assert address_of(url) == one.address.removesuffix(" on m")


@pytest.mark.parametrize(
    "url",
    ["redis://h", "redis://[fe80::2]:1", "postgresql:///d?host=h", "temporal://h:7233/localhost"],
)
def test_what_is_the_same_store_from_all_machines(url: str) -> None:
    assert address_of(url, "m") == address_of(url)


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """None of libpq's is set."""
    for each in (name for name in os.environ if name.startswith("PG")):
        monkeypatch.delenv(each)
    return monkeypatch


@pytest.mark.parametrize(
    ("variable", "one", "other"),
    [
        ("PGHOST", "db1.example", "db2.example"),
        ("PGHOST", "db1.example,db3.example", "db2.example,db3.example"),
        ("PGHOST", "/run/one", "/run/two"),
        ("PGHOST", "/run/one", "/run/ONE"),
        ("PGHOSTADDR", "192.0.2.1", "192.0.2.2"),
        ("PGPORT", "5432", "5433"),
        ("PGDATABASE", "one", "two"),
        ("PGUSER", "one", "two"),
        ("PGOPTIONS", "-csearch_path=one", "-csearch_path=two"),
    ],
)
def test_what_libpq_takes_from_the_environment_leads_elsewhere(
    variables: pytest.MonkeyPatch, variable: str, one: str, other: str
) -> None:
    """The same URL at two servers, whose surroundings differ."""
    url = "postgresql://?sslmode=require"
    found: list[Own] = []
    for value in (one, other):
        variables.setenv(variable, value)
        found.append(own_of(Placement(name="default", url=url), nameless=True, machine="m"))
    assert found[0].address != found[1].address
    with pytest.raises(NotConfigured, match=re.escape(found[1].address)):
        joined(after((found[0],)), (found[1],), FRESH, {})


def test_a_url_says_more_than_the_environment(variables: pytest.MonkeyPatch) -> None:
    said = {url: address_of(url) for url in ("postgresql://me@h", "postgresql://me@h:5433/db")}
    for name in ("HOST", "DATABASE", "USER"):
        variables.setenv(f"PG{name}", "other")
    variables.setenv("PGPORT", "5433")
    assert address_of("postgresql://me@h:5433/db") == said["postgresql://me@h:5433/db"]
    assert (
        address_of("postgresql://me@h") == "postgresql://h:5433/other" != said["postgresql://me@h"]
    )
    assert address_of("postgresql://") == "postgresql://other:5433/other"


def test_services_of_libpq(variables: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a service is stands in a file that each machine has for itself."""
    file = tmp_path / "services"
    file.write_text("[locks]\nhost=db1.example\nport=5433\ndbname=locks\n")
    variables.setenv("PGSERVICEFILE", str(file))
    with pytest.raises(NotConfigured, match="service="):
        address_of("postgresql:///locks?service=locks")
    variables.setenv("PGSERVICE", "locks")
    assert address_of("postgresql://") == "postgresql://db1.example:5433/locks"
    assert address_of("postgresql://h/db") == "postgresql://h:5433/db"


def test_an_address_of_the_network_behind_a_hosts_name(variables: pytest.MonkeyPatch) -> None:
    url = "postgresql://db.example/locks"
    assert not is_of_machine(url)
    variables.setenv("PGHOSTADDR", "127.0.0.1")
    assert is_of_machine(url)
    assert not is_of_machine(f"{url}?hostaddr=192.0.2.1")


@pytest.mark.parametrize(
    "was", ["postgresql://h:5432/db?c00df69aece4", "postgresql:///db on m", "postgresql://h/a b"]
)
def test_where_it_was_may_be_said_as_it_is_written_down(was: str) -> None:
    now = Placement(name="a", url="postgresql://new.example/db", was=was)
    before, own = Own(Place("a", "", ""), was), own_of(now, nameless=False, machine="m")
    assert joined(after((before,)), (own,), FRESH, {}).places[0].stores == (was, own.address)


@pytest.mark.parametrize(
    ("records", "is_same"),
    [
        ("sqlite:////var/lib/leases.db", True),
        ("sqlite:////var/lib/records.db", True),
        ("memory://records", True),
        ("redis://localhost", False),  # it may be a way to one that is shared
        ("postgresql://127.0.0.1/records", False),
        ("postgresql://db.example/records", False),
    ],
)
def test_whoever_reads_the_records_finds_the_same_file(records: str, is_same: bool) -> None:
    assert is_beside("sqlite:////var/lib/leases.db", records) == is_same


def test_a_store_that_the_records_lie_in_is_the_same_for_all() -> None:
    assert is_beside("redis://localhost", "redis://me:p@localhost:6379/0")
    assert not is_beside("redis://localhost", "redis://localhost/1")


def test_no_secret_is_written_down() -> None:
    for url in (
        "redis://me:hunter2@h/0?sentinel_password=hunter2&sentinel=s",
        "postgresql://me:hunter2@h/db?password=hunter2",
        "temporal://h/ns?api_key=hunter2",
        "other://me:hunter2@h/x?token=hunter2",
    ):
        assert "hunter2" not in address_of(url)
        assert "me" not in address_of(url).replace("temporal", "")
