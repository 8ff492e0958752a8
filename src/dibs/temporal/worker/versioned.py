"""Our workflows for a worker that belongs to a version of a deployment: they go over to each new version.

Pinned they would hold on to the old one for as long as a lock is in use. What they do differently in a later
release is behind `workflow.patched`. A server refuses this word from a worker without versions.
"""

from temporalio import workflow
from temporalio.common import VersioningBehavior

from dibs.backends.temporal.broker.mailbox import DibsMailbox, MailboxInput
from dibs.backends.temporal.broker.workflow import DibsBroker
from dibs.backends.temporal.protocol import ids
from dibs.backends.temporal.protocol.permits import PermitSlotInput
from dibs.backends.temporal.protocol.wire import BrokerInput
from dibs.temporal.slot.permit_workflow import PermitSlotWorkflow


@workflow.defn(name=ids.BROKER, versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class VersionedBroker(DibsBroker):
    """A broker."""

    @workflow.init
    def __init__(self, given: BrokerInput) -> None:
        super().__init__(given)

    @workflow.run
    async def run(self, given: BrokerInput) -> None:
        """As it does anywhere."""
        await super().run(given)


@workflow.defn(name=ids.MAILBOX, versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class VersionedMailbox(DibsMailbox):
    """A mailbox."""

    @workflow.init
    def __init__(self, given: MailboxInput | None = None) -> None:
        super().__init__(given)

    @workflow.run
    async def run(self, given: MailboxInput | None = None) -> None:
        """As it does anywhere."""
        await super().run(given)


@workflow.defn(name=ids.PERMIT, versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class VersionedPermit(PermitSlotWorkflow):
    """A permit."""

    @workflow.init
    def __init__(self, given: PermitSlotInput) -> None:
        super().__init__(given)

    @workflow.run
    async def run(self, given: PermitSlotInput) -> str:
        """As it does anywhere."""
        return await super().run(given)
