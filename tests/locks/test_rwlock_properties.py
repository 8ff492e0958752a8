"""Whatever readers and writers do, in whatever order: as the naive reference says, and safe under faults."""

import random
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dibs import BackendUnavailable
from dibs.core.names import fingerprint
from dibs.errors import AcquireTimeout, LeaseLost
from dibs.model import MANY
from dibs.session import StoreSession
from dibs.stores.memory import MemoryStore
from dibs.sync import Client
from dibs.testing import Faults, FaultyStore, ManualClock
from tests.sampling import examples

people = st.integers(0, 3)


class ReadersAndWriters(RuleBasedStateMachine):
    """Four people, each with a client of its own, and a model of who is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        store = MemoryStore(f"memory://{uuid4()}", clock=self.clock)
        self.clients: list[Any] = [Client(StoreSession(store, clock=self.clock)) for _ in range(4)]
        self.locks = [client.rwlock("a", ttl="10s") for client in self.clients]
        self.leases: dict[int, Any] = {}
        self.readers: set[int] = set()
        self.writer: int | None = None
        self.last_token = 0

    def granted(self, token: int) -> None:
        assert token > self.last_token, "every grant has a token above all before it"
        self.last_token = token

    @rule(who=people)
    def read(self, who: int) -> None:
        free = who not in self.leases and self.writer is None
        lease = self.locks[who].read().try_acquire()
        assert (lease is not None) is free
        if lease is not None:
            self.granted(lease.token)
            self.leases[who] = lease
            self.readers.add(who)

    @rule(who=people)
    def write(self, who: int) -> None:
        free = not self.readers and self.writer is None
        lease = self.locks[who].write().try_acquire()
        assert (lease is not None) is free
        if lease is not None:
            self.granted(lease.token)
            self.leases[who] = lease
            self.writer = who

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def upgrade(self, data: Any) -> None:
        who = data.draw(st.sampled_from(sorted(self.leases)))
        lease = self.leases[who]
        if self.writer == who:
            lease.upgrade()
            return
        if self.readers == {who}:
            lease.upgrade(wait=0)
            self.granted(lease.token)
            self.readers, self.writer = set(), who
        else:
            with pytest.raises(AcquireTimeout) as refusal:
                lease.upgrade(wait=0)
            others = {self.leases[other].token for other in self.readers - {who}}
            assert {holder.token for holder in refusal.value.holders} == others

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def downgrade(self, data: Any) -> None:
        who = data.draw(st.sampled_from(sorted(self.leases)))
        token = self.leases[who].token
        self.leases[who].downgrade()
        assert self.leases[who].token == token
        if self.writer == who:
            self.readers, self.writer = {who}, None

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        who = data.draw(st.sampled_from(sorted(self.leases)))
        assert self.leases.pop(who).release() is True
        self.readers.discard(who)
        if self.writer == who:
            self.writer = None

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def hand_on(self, data: Any) -> None:
        """Detached and attached by a client, it is what it was."""
        who = data.draw(st.sampled_from(sorted(self.leases)))
        self.leases[who] = self.clients[who].attach(self.leases[who].detach())

    @rule(seconds=st.sampled_from([0.5, 3.0, 9.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def all_agree(self) -> None:
        modes = {who: lease.mode for who, lease in self.leases.items()}
        expected = dict.fromkeys(self.readers, "read")
        if self.writer is not None:
            expected[self.writer] = "write"
        assert modes == expected
        assert not any(lease.lost for lease in self.leases.values())
        status = self.locks[0].status()
        assert {holder.token: holder.units for holder in status.holders} == {
            lease.token: MANY if lease.mode == "write" else 1 for lease in self.leases.values()
        }
        assert self.locks[0].locked() is bool(self.leases)
        assert self.locks[0].read().locked() is (self.writer is not None)

    def teardown(self) -> None:
        for lease in self.leases.values():
            lease.release()
        for client in self.clients:
            client.close()


TestReadersAndWriters = ReadersAndWriters.TestCase

TestReadersAndWriters.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)


# ---- under faults ---------------------------------------------------------------------------------


class Storm:
    """Four people over an unreliable network, each of whom may be wrong about nothing but its chances."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        store = MemoryStore(f"memory://{uuid4()}", clock=self.clock)
        self.faults = [Faults(seed=seed + number) for number in range(4)]
        self.clients: list[Any] = [
            Client(StoreSession(FaultyStore.around(store, faults), clock=self.clock))
            for faults in self.faults
        ]
        self.witness: Any = Client(StoreSession(store, clock=self.clock))
        self.leases: dict[int, Any] = {}
        self.upgrades = 0
        self.in_doubt = 0

    def blow(self) -> None:
        """Every kind of loss, lateness and repetition."""
        for faults in self.faults:
            faults.lose_request = faults.lose_reply = faults.late_request = 0.12
            faults.double = faults.echo = 0.12

    def calm(self) -> None:
        for faults in self.faults:
            faults.lose_request = faults.lose_reply = faults.late_request = 0.0
            faults.double = faults.echo = 0.0

    def step(self) -> None:
        who = self.random.randrange(4)
        lease = self.leases.get(who)
        try:
            if lease is None:
                if self.random.random() < 0.5:
                    return
                lock = self.clients[who].rwlock("a", ttl="10s")
                side = lock.read() if self.random.random() < 0.8 else lock.write()
                if (lease := side.try_acquire()) is not None:
                    self.leases[who] = lease
            elif self.random.random() < 0.3:
                del self.leases[who]
                lease.release()
            elif lease.mode == "write":
                lease.downgrade()
            else:
                lease.upgrade(wait=0)
                self.upgrades += 1
        except BackendUnavailable:
            self.in_doubt += 1
        except AcquireTimeout:
            pass
        except LeaseLost:
            self.leases.pop(who, None)
        self.check()
        if self.random.random() < 0.2:
            self.clock.advance(self.random.choice([0.1, 1.0, 4.0]))
            self.check()

    def check(self) -> None:
        """As far as the holders believe, a writer is alone, with a token above all others'."""
        held = [lease for lease in self.leases.values() if not lease.lost]
        writers = [lease for lease in held if lease.mode == "write"]
        assert not writers or len(held) == 1, held
        assert len({lease.token for lease in held}) == len(held)
        for lease in writers:
            status = self.witness.status("a", "rwlock")
            assert [(h.token, h.units) for h in status.holders] == [(lease.token, MANY)]

    def end(self) -> None:
        """Once the network is well again the store has what the holders believe in, and no more."""
        self.calm()
        self.clock.advance(6)
        mine = {
            fingerprint(lease._id): MANY if lease.mode == "write" else 1
            for lease in self.leases.values()
            if not lease.lost
        }
        status = self.witness.status("a", "rwlock")
        assert {h.lease: h.units for h in status.holders if h.lease in mine} == mine
        self.clock.advance(12)  # what could not be given up ends by itself
        status = self.witness.status("a", "rwlock")
        assert {h.lease: h.units for h in status.holders} == mine

    def close(self) -> None:
        self.calm()
        for lease in self.leases.values():
            lease.release()
        for client in (*self.clients, self.witness):
            client.close()


def weather(seed: int) -> Storm:
    """Storms and lulls."""
    storm = Storm(seed)
    try:
        for _ in range(25):
            storm.blow()
            for _ in range(30):
                storm.step()
            storm.end()
            for _ in range(5):
                storm.step()
    finally:
        storm.close()
    return storm


@pytest.mark.parametrize("seed", range(12))
def test_a_writer_is_alone_whatever_gets_lost(seed: int) -> None:
    storm = weather(seed)
    assert storm.upgrades >= 3
    assert storm.in_doubt > 20
