"""`dibs temporal …`: what workflows need, beside the store."""

import click

from dibs.cli.temporal_worker import worker


@click.group()
def temporal() -> None:
    """Serve locks to Temporal workflows."""


temporal.add_command(worker)
