"""`dibs renew`: renew a lease that `acquire` made."""

import click

from dibs.cli import options
from dibs.cli.by_id import id_of, lock_id, ttl_of, with_id
from dibs.cli.naming import base64_name, bytes_of
from dibs.cli.options import Kind
from dibs.cli.wording import shown, span


@click.command()
@click.argument("name", type=options.Spelt())
@lock_id
@click.option(
    "-T", "--ttl", required=True, metavar="TIME", help="The lease ends this time from now."
)
@base64_name
@options.kind
@options.store
@options.as_json
def renew(
    name: bytes,
    lock_id: str,
    ttl: str,
    is_base64: bool,
    kind: Kind | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Renew the lease on NAME with this id, for --ttl from now.

    A renewal never shortens a lease. Nothing renews it again: repeat the command in time. Exits with 76 if
    the lease has ended. Then stop your work: another holder may have NAME.
    """
    wanted, lease_id, plain = ttl_of(ttl), id_of(lock_id), bytes_of(name, is_base64)
    with options.open_client(url) as client:
        key, left = with_id(client, kind, plain, lambda leases: leases.renew(lease_id, wanted))
    if as_json:
        from dibs.cli.output import emit, name_shape

        emit(name_shape(key) | {"renewed": True, "ttl": wanted, "expires_in": round(left, 3)})
    else:
        print(f"renewed {shown(key)}: you hold it for {span(left)}")
    return 0
