"""`dibs temporal …`: workers for Temporal workflows."""

import click

from dibs.cli.temporal_worker import worker


@click.group()
def temporal() -> None:
    """Run workers for Temporal workflows."""


temporal.add_command(worker)
