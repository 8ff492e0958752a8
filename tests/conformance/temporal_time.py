"""A broker whose time the suite moves by hand. Its worker runs in the tests' process, without a sandbox."""

from temporalio import workflow

from dibs.stores.temporal import ids
from dibs.stores.temporal.wire import BrokerInput
from dibs.temporal.broker.workflow import DibsBroker
from dibs.testing import ManualClock


@workflow.defn(name=ids.BROKER)
class ManualBroker(DibsBroker):
    """Goes by the clock of the case that runs: time acts only when a command comes."""

    clock: ManualClock

    @workflow.init
    def __init__(self, given: BrokerInput) -> None:
        super().__init__(given)

    @workflow.run
    async def run(self, given: BrokerInput) -> None:
        await super().run(given)

    def _time(self) -> tuple[float, int]:
        return self.clock.now(), self.clock.stamp()

    def _let_time_act(self) -> None:
        pass

    def _next_change(self) -> float | None:
        return None
