"""The tree of commands. A command's module is imported when it is called, so that ``tessera --version`` stays
quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

import click

from tessera._version import __version__
from tessera.doors.cli.failing import exit_status
from tessera.doors.cli.opening import common_options

COMMANDS: Final = {
    "worker": "working:worker",
    "enqueue": "enqueueing:enqueue",
    "jobs": "jobs:jobs",
    "queues": "queues:queues",
    "dead": "dead:dead",
    "explain": "explaining:explain",
    "workers": "workers:workers",
    "migrate": "migrating:migrate",
    "maintain": "maintaining:maintain",
    "capabilities": "capabilities:capabilities",
    "doctor": "doctor:doctor",
    "check": "checking:check",
    "demo": "demo:demo",
}
"""Command -> module and name in it, in the order of ``tessera --help``."""


class Tree(click.Group):
    """The root. Turns every way a command can end into an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command = getattr(import_module(f"tessera.doors.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        given = sys.argv[1:] if args is None else list(args)
        try:
            # Not standalone: click would print usage errors by itself, and not as the JSON that was asked
            # for.
            status = super().main(given, prog_name or "tessera", complete_var, standalone_mode=False, **extra)
        except BrokenPipeError:
            # The reader has seen enough (``tessera jobs list | head``). Python must not try to flush at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 0
        except BaseException as error:  # noqa: BLE001  every end has a status
            status = exit_status(error, as_json="--json" in given)
        sys.exit(status if isinstance(status, int) else 0)


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"tessera {__version__}")
        ctx.exit(0)


tree = Tree(
    "tessera",
    params=[
        *common_options(),
        click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_version),
    ],
    help="One queue for Python applications and for AI agents.",
    epilog=(
        "Exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 nothing found, "
        "4 the store is unavailable, busy or full, "
        "5 settings are wrong, 130 interrupted."
    ),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
    subcommand_metavar="COMMAND [ARGS]...",
)
