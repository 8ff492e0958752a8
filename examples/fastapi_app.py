"""A FastAPI application that pays an order once at a time, however many workers it has.

Serve it with `uvicorn --workers 4 fastapi_app:app` in this folder. Run as it stands, it asks itself.

Prints: paid order 42 with token …
Prints: 409 application/problem+json: The resource is in use.
Prints: paid order 42 with token …
"""

from typing import Annotated, Any

from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient

import dibs.sync
from dibs import Lease
from dibs.contrib.fastapi import Held, lifespan, problems

app = FastAPI(lifespan=lifespan(), exception_handlers=problems())  # the store of $DIBS_URL

OrderLease = Annotated[Lease, Depends(Held("order:{order_id}"))]


@app.post("/orders/{order_id}/pay")
async def pay(order_id: int, lease: OrderLease) -> str:
    """Cancelled, and answered with a problem, if the lease is lost on the way."""
    lease.ensure(needs="2s")
    return f"paid order {order_id} with token {lease.token}"


def ask(client: TestClient) -> None:
    answer = client.post("/orders/42/pay")
    body: Any = answer.json()
    if answer.status_code == 200:
        print(body)
    else:
        print(answer.status_code, answer.headers["content-type"], end=f": {body['detail']}\n")


if __name__ == "__main__":
    with TestClient(app) as client:
        ask(client)
        with dibs.sync.Lock("order:42", note="somebody else"):
            ask(client)
        ask(client)
