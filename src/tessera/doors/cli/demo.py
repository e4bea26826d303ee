"""``tessera demo``: real work on real files, in one process."""

from __future__ import annotations

import os

import click

from tessera.doors.cli.opening import Door, Verb, pass_door


@click.command(cls=Verb)
@click.argument("directory", required=False, metavar="[DIR]")
@click.option(
    "--once",
    is_flag=True,
    help="End when the work is done; status 0 only if every check holds. Also DEMO_ONCE=1.",
)
@pass_door
def demo(door: Door, directory: str | None, once: bool) -> int:
    """Work on the files of a folder (default: the working directory) and write a report."""
    from tessera.demo import main

    once = once or os.environ.get("DEMO_ONCE", "") not in ("", "0")
    status: int = main(directory, once, door.given.get("url"))
    return status
