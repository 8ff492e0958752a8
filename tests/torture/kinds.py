"""The primitives themselves, over the simulated runtime; their leases tell what becomes of them."""

from typing import Any

from dibs.locks.acquire import StopSignal
from dibs.locks.allof import AllOfBase, LeasesBase
from dibs.locks.base import PrimitiveBase
from dibs.locks.election import CampaignBase, ElectionBase, GuardedBase, TermBase
from dibs.locks.lease import LeaseBase
from dibs.locks.rwlock import ReadSideBase, RWLeaseBase, RWLockBase, WriteSideBase
from dibs.locks.semaphore import SemaphoreBase
from dibs.locks.tasklock import TaskLeaseBase, TaskLockBase
from tests.torture.simruntime import SimRuntime


class Told(LeaseBase):
    """Tells somebody, once it has a holder, of the deadlines that follow from confirmed renewals."""

    teller: Any = None
    called: str = ""
    """Its name in the history."""

    def _extend(self, sent: float, ttl: float) -> None:
        super()._extend(sent, ttl)
        if self._end is None and self.teller is not None:
            self.teller.tell("renewed", self)

    def _finish(self, how: str) -> bool:
        if how == "forgotten" and self.teller is not None:
            self.teller.tell("releasing", self)
        return super()._finish(how)


class SimRWLease(Told, RWLeaseBase):
    confirmed = True
    """The store has answered to its last downgrade."""


class SimTaskLease(Told, TaskLeaseBase): ...


class SimTerm(Told, TermBase):
    async def _release(self) -> bool:
        self.teller.tell("releasing", self)
        return await super()._release()

    async def _hand_over(self) -> None:
        self.teller.tell("releasing", self)
        await super()._hand_over()

    def _release_after_loss(self) -> None:
        self.teller.tell("releasing", self)
        super()._release_after_loss()


class Here:
    """A primitive of one simulated process."""

    runtime: SimRuntime

    def _runtime(self) -> Any:
        return self.runtime


class SimLock(Here, PrimitiveBase[Told]):
    kind = "lock"
    _lease_type = Told


class SimSemaphore(Here, SemaphoreBase[Told]):
    _lease_type = Told


class SimReading(Here, ReadSideBase[SimRWLease]):
    _lease_type = SimRWLease


class SimWriting(Here, WriteSideBase[SimRWLease]):
    _lease_type = SimRWLease


class SimRWLock(RWLockBase[SimReading, SimWriting, SimRWLease]):
    _read_type = SimReading
    _write_type = SimWriting


class SimAllOf(AllOfBase[LeasesBase[Told]]):
    _leases_type = LeasesBase[Told]
    _takes = PrimitiveBase
    _side = "here"


class SimTaskLock(Here, TaskLockBase[SimTaskLease]):
    _lease_type = SimTaskLease


class SimElection(Here, ElectionBase[SimTerm]):
    _lease_type = SimTerm
    hand: Any
    invoked: float

    async def _acquire(self, *about: Any) -> SimTerm:
        self.invoked = self.hand.engine.now
        return await super()._acquire(*about)

    async def _win(self, stop: StopSignal) -> SimTerm:
        self.invoked = self.hand.engine.now
        return await super()._win(stop)

    def _given(self, lease: SimTerm) -> SimTerm:
        term = super()._given(lease)
        self.hand.granted(term, self.invoked)
        return term


class SimCampaign(CampaignBase[SimTerm]):
    def guard(self) -> GuardedBase[SimTerm]:
        return GuardedBase(self)
