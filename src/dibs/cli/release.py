"""`dibs release`: release a lease that `acquire` made."""

import click

from dibs.cli import options
from dibs.cli.by_id import id_of, lock_id, with_id
from dibs.cli.naming import base64_name, bytes_of
from dibs.cli.options import Kind
from dibs.cli.wording import shown


@click.command()
@click.argument("name", type=options.Spelt())
@lock_id
@base64_name
@options.kind
@options.store
@options.as_json
def release(
    name: bytes, lock_id: str, is_base64: bool, kind: Kind | None, url: str | None, as_json: bool
) -> int:
    """Release the lease on NAME with this id, or leave the queue.

    Exits with 76 if the lease has already ended. To end another holder's lease, use `dibs revoke`.
    """
    lease_id, plain = id_of(lock_id), bytes_of(name, is_base64)
    with options.open_client(url) as client:
        key, _ = with_id(client, kind, plain, lambda leases: leases.release(lease_id))
    if as_json:
        from dibs.cli.output import emit, name_shape

        emit(name_shape(key) | {"released": True})
    else:
        print(f"released {shown(key)}")
    return 0
