"""``tessera worker``: a process that works, or a supervisor of several."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tessera.config import KNOWN, Settings, read
from tessera.doors.cli import logs
from tessera.doors.cli.health import HealthPort, ReadyFile, Vitals
from tessera.doors.cli.opening import Door, Verb, pass_door
from tessera.doors.cli.supervising import Supervisor, stop_with_parent
from tessera.model.errors import ConfigError

if TYPE_CHECKING:
    from tessera.worker import Worker

logger = logging.getLogger("tessera.cli")
_OF_THE_SUPERVISOR: Final = ("processes", "health_port", "ready_file", "name")
"""Settings that a child process gets from its supervisor."""


def _setting(option: str, name: str, **attributes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option that is a setting: read, checked and explained as the setting is, wherever it comes from."""
    info = KNOWN[name]
    return click.option(option, name, metavar=info["shape"], help=info["meaning"], **attributes)


@click.command(cls=Verb)
@click.argument("application", metavar="[MODULE:APP]", required=False)
@_setting("--queues", "queues")
@click.option(
    "--strict", is_flag=True, flag_value="true", default=None, type=str, help=KNOWN["strict"]["meaning"]
)
@_setting("--concurrency", "concurrency")
@_setting("--lease", "lease")
@_setting("--grace", "grace")
@_setting("--prefetch", "prefetch")
@_setting("--name", "name")
@_setting("--processes", "processes")
@_setting("--health-port", "health_port")
@_setting("--ready-file", "ready_file")
@_setting("--log-level", "log_level")
@_setting("--log-format", "log_format")
@click.option(
    "--reload",
    is_flag=True,
    help="For development: start anew when a .py file below the working directory changes.",
)
@click.option("--supervised", is_flag=True, hidden=True)
@pass_door
def worker(
    door: Door, /, application: str | None, reload: bool, supervised: bool, **options: str | None
) -> int:
    """Run jobs of the application's kinds until a signal ends it.

    The first SIGTERM or Ctrl-C lets running jobs end, the second stops them at once. Each option is also a
    setting: TESSERA_LEASE, or lease in tessera.toml.
    """
    if application is not None:
        door.given["app"] = application
    arguments = door.arguments(**options)
    settings = worker_settings(arguments, door.places)
    if not settings.app:
        raise ConfigError(
            [
                (
                    "app: a worker needs the application's code; "
                    "give MODULE:APP, TESSERA_APP or app in tessera.toml"
                )
            ]
        )
    logs.configure(settings.log_level, settings.log_format)
    if reload or settings.processes > 1:
        return _supervise(door, settings, options, reload=reload)
    if supervised:
        stop_with_parent()
    return _work(door, settings)


def worker_settings(arguments: Mapping[str, object], places: Mapping[str, Any]) -> Settings:
    """The settings, checked as a worker checks them too. Raises ConfigError with all that is wrong, each with
    its source."""
    from tessera.worker.settings import WorkerSettings

    settings, problems = read(arguments, **places)
    try:
        WorkerSettings(**settings.worker())
    except ConfigError as error:
        problems += [_sourced(problem, settings) for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return settings


def _sourced(problem: str, settings: Settings) -> str:
    """A worker's problem in the words of the setting that caused it: ``lease_seconds: is 0`` is told of
    ``lease``."""
    field, _, rest = problem.partition(": ")
    name = next((name for name, info in KNOWN.items() if info["worker"] == field), field)
    return f"{settings.source(name)}: {name}: {rest}"


def _work(door: Door, settings: Settings) -> int:
    from tessera.running import make_worker
    from tessera.worker import run_until_signalled

    app = door.code(settings.app)
    runs = make_worker(app, {"ends_process": True, **settings.worker()})
    unnamed = sorted(set(runs.settings.weights) - {kind.options.queue for kind in app.kinds.values()})
    if settings.queues is not None and unnamed:
        # Into the log, whose form a supervisor or a collector may read. It may be meant so: a job can be
        # enqueued into any queue.
        logger.warning("no kind of the application names the queue(s) %s", ", ".join(map(repr, unnamed)))
    with _watched(settings, lambda: _vitals(runs)):
        status: int = run_until_signalled(runs)
        return status


def _vitals(runs: Worker) -> Vitals:
    """A worker that starts or drains is alive without being ready."""
    is_running = runs.state == "running"
    return Vitals(
        alive=runs.healthy if is_running else runs.state != "stopped", ready=is_running and runs.healthy
    )


@contextmanager
def _watched(settings: Settings, vitals: Callable[[], Vitals]) -> Iterator[None]:
    """The health port and the readiness file, if they are asked for."""
    with ExitStack() as stack:
        if settings.health_port:
            stack.enter_context(closing(HealthPort(settings.health_port, vitals)))
        if settings.ready_file:
            stack.enter_context(closing(ReadyFile(Path(settings.ready_file), vitals)))
        yield


# Several processes ------------------------------------------------------------------------------------------


def _supervise(door: Door, settings: Settings, options: Mapping[str, str | None], *, reload: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
        ready = {number: Path(folder) / f"{number}.ready" for number in range(1, settings.processes + 1)}
        base = _command(door, settings, options)

        def argv(number: int) -> list[str]:
            name = f"{settings.name}-{number}" if settings.name else f"worker-{number}"
            return [*base, "--name", name, "--ready-file", str(ready[number])]

        async def run() -> int:
            supervisor = Supervisor(
                argv,
                settings.processes,
                watched=Path.cwd() if reload else None,
                # A killed child leaves its file behind.
                on_end=lambda number: ready[number].unlink(missing_ok=True),
            )

            def vitals() -> Vitals:
                all_ready = not supervisor.is_stopping and all(path.exists() for path in ready.values())
                return Vitals(alive=True, ready=all_ready)

            with _watched(settings, vitals):
                return await supervisor.run()

        return asyncio.run(run())


def _command(door: Door, settings: Settings, options: Mapping[str, str | None]) -> list[str]:
    """The command of a child, without what differs between them. Settings of the environment and the file it
    reads by itself."""
    words = [
        sys.executable,
        "-m",
        "tessera",
        "worker",
        settings.app,
        "--supervised",
        "--processes",
        "1",
        "--health-port",
        "0",
    ]
    for name, value in {**door.given, **options}.items():
        if value is None or name == "app" or name in _OF_THE_SUPERVISOR:
            continue
        words += ["--strict"] if name == "strict" else [f"--{name.replace('_', '-')}", str(value)]
    return words
