"""The dependency: a lease that is held while a request is served."""

from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import HTTPConnection

from dibs import AcquireTimeout, Client, Lease, Lock, NameTemplate, Semaphore
from dibs.contrib.fastapi.fields import declared_by, values_of
from dibs.contrib.fastapi.problems import answer_with, check_status


class Held:
    """A dependency that holds the lock, or the semaphore's units, that a template names.

    `Annotated[Lease, Depends(Held("order:{order_id}"))]`: the fields are parameters of the
    path, or such as the handler or another dependency declares, and are read as they are declared there,
    so that `/orders/7` and `/orders/007` are one order to a handler that takes an `int`.

    Contention: one try, or as `wait` says, then `AcquireTimeout`, which `problems()` answers with
    409, or with `status`. Expiry: renewed meanwhile; a lease that is lost cancels the handler, and
    raises `LeaseLost`. It is released when the dependency's scope ends: after the response has been
    sent, or, with `Depends(..., scope="function")`, before. With `capacity` it is a semaphore, of which
    `units` are taken. Other options are those of `Lock`.
    """

    def __init__(
        self,
        template: str,
        *,
        capacity: int | None = None,
        units: int = 1,
        status: int | None = None,
        client: Client | str | None = None,
        **options: Any,
    ) -> None:
        self.template = template
        self._name = NameTemplate(template)
        self._capacity, self._units, self._status = capacity, units, status
        if status is not None:
            check_status(status)
        self._client, self._options = client, {"wait": 0, **options}
        example = self._resource(template, client)  # what is wrong with the options is told now
        if not 1 <= units <= (capacity or 1):
            raise ValueError(f"units is {units}: {example!r} has 1 to {capacity or 1}")

    def check(self, route: Any) -> None:
        """Raises `ValueError` for a field that no parameter of a route is for."""
        self._name.check(declared_by(route), f"the route {route.path}")

    async def __call__(self, connection: HTTPConnection) -> AsyncGenerator[Lease]:
        """What FastAPI calls: the lease, until the scope ends."""
        name = self._name.filled(values_of(self._name.fields, connection))
        client = self._client or getattr(connection.state, "dibs", None)
        resource = self._resource(name, client)
        try:
            lease = await resource.acquire(units=self._units)
        except AcquireTimeout:
            if self._status is not None:
                answer_with(connection, self._status)
            raise
        async with lease:
            yield lease

    def _resource(self, name: str | bytes, client: Client | str | None) -> Lock | Semaphore:
        if self._capacity is None:
            return Lock(name, client=client, **self._options)
        return Semaphore(name, self._capacity, client=client, **self._options)

    def __repr__(self) -> str:
        return f"Held({self.template!r})"
