"""`dibs completion`: shell completion of verbs, options, and names in use."""

import os
import sys
import warnings
from typing import NoReturn

import click
from click.shell_completion import get_completion_class, shell_complete

from dibs.cli import options

SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog=options.examples(
        'eval "$(dibs completion bash)"     in ~/.bashrc',
        'eval "$(dibs completion zsh)"      in ~/.zshrc',
        "dibs completion fish | source      in ~/.config/fish/config.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print the completion script for SHELL.

    Names come from the store of DIBS_URL or the settings, if it answers within 0.3 s.
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows them all"
    script = kind(context.find_root().command, {}, "dibs", options.COMPLETE)
    print(script.source_template % script.source_vars())
    return 0


def complete(app: click.Command, asked: str) -> NoReturn:
    """Answer a shell, and end at once: a store that is slow is not waited for."""
    warnings.simplefilter("ignore")
    code = 1
    try:
        code = shell_complete(app, {}, "dibs", options.COMPLETE, asked)
        sys.stdout.flush()
    except Exception:  # noqa: BLE001, S110 - nothing that goes wrong may garble the line being typed
        pass
    os._exit(code)
