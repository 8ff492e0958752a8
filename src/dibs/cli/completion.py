"""`dibs completion`: shell completion of verbs, options, and names in use."""

import os
import sys
import warnings
from itertools import islice
from typing import TYPE_CHECKING, NoReturn

import click
from click.shell_completion import get_completion_class, shell_complete

from dibs.cli import options
from dibs.process import start_thread

if TYPE_CHECKING:
    from dibs.model import Status

PATIENCE = 0.3
"""Seconds that Tab waits for a store."""

MOST = 200
"""Names offered at most."""

SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog=options.examples(
        'eval "$(dibs completion bash)"     in ~/.bashrc',
        'eval "$(dibs completion zsh)"      in ~/.zshrc',
        "dibs completion fish | source      in ~/.config/fish/config.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> int:
    """Print the completion script for SHELL.

    Names come from the store of DIBS_URL or the settings, if it answers within 0.3 s.
    """
    from dibs.cli.app import COMPLETE, app

    kind = get_completion_class(shell)
    assert kind is not None, "click knows them all"
    script = kind(app, {}, "dibs", COMPLETE)
    print(script.source_template % script.source_vars())
    return 0


def complete(app: click.Command, asked: str) -> NoReturn:
    """Answer a shell, and end at once: a store that is slow is not waited for."""
    from dibs.cli.app import COMPLETE

    warnings.simplefilter("ignore")
    code = 1
    try:
        code = shell_complete(app, {}, "dibs", COMPLETE, asked)
        sys.stdout.flush()
    except Exception:  # noqa: BLE001, S110 - nothing that goes wrong may garble the line being typed
        pass
    os._exit(code)


def names_in_use(ctx: click.Context, incomplete: str) -> list[str]:
    """Names that begin so, as far as the store tells them in time."""
    found: list[str] = []

    def look() -> None:
        try:
            with ctx.scope(cleanup=False), options.open_to_look(ctx.params.get("url")) as client:
                statuses = client.list(os.fsencode(incomplete), ctx.params.get("kind"))
                found.extend(filter(None, map(_word, islice(statuses, MOST))))
        except Exception:  # noqa: BLE001, S110 - then there is nothing to choose from
            pass

    start_thread(look, "dibs completion").wait(PATIENCE)
    return list(dict.fromkeys(found))


def _word(status: "Status") -> str:
    """A name that a shell can put into a line as it is; empty for another."""
    name = status.key.partition(b":")[2].decode("utf-8", "replace")
    is_plain = name.isprintable() and "\ufffd" not in name and not set(name) & set(" '\"\\$`")
    return name if is_plain else ""
