"""What there is to acquire, as `Semaphore` and `Lock` declare it."""

from typing import ClassVar, Literal, Protocol

type OnHolderClose = Literal["fast", "safe"]


class Pool(Protocol):
    """The slots of a resource, and what holds of their permits."""

    kind: ClassVar[str]
    resource: str
    capacity: int
    task_queue: str | None
    armed: bool
    quarantine: float
    on_holder_close: OnHolderClose
