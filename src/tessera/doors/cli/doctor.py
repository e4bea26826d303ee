"""``tessera doctor``: the settings and where they come from, the store, who works, and what is wrong with it
all."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import click

from tessera import seam
from tessera._version import __version__
from tessera.app import Tessera
from tessera.config import KNOWN, Settings, read, shown_url
from tessera.doors.cli.condition import facts_of, worries
from tessera.doors.cli.failing import DONE, REFUSED, SETTINGS, status_of
from tessera.doors.cli.opening import YES, Door, Verb, pass_door
from tessera.engine import inspecting
from tessera.model.errors import ConfigError, TesseraError, Unsupported
from tessera.store.protocol import Describes, Maintains, SetsClockBack, Store

_PACKAGES: Final = ("msgspec", "click", "rich", "pydantic", "uvloop")
_AHEAD: Final = "clock ahead of this process by ms"
_LEAD_MS: Final = 60_000
"""A clock this far ahead is not waited for any more."""
_SKEW_MS: Final = 1_000
"""A clock further from the store's is worth a word: only display and local timers suffer, but logs mislead.
"""


@dataclass
class Findings:
    """What was found. ``errors`` are wrong, ``warnings`` may be meant so."""

    settings: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    store: dict[str, Any] = field(default_factory=dict)
    upkeep: dict[str, Any] = field(default_factory=dict)
    work: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    status: int = DONE

    def wrong(self, problem: str, status: int = REFUSED) -> None:
        """One error more; the worst exit status counts."""
        self.errors.append(problem)
        self.status = max(self.status, status)


@click.command(cls=Verb)
@click.option(
    "--deep",
    is_flag=True,
    help="Re-derive every count, counter, slot and edge from the rows; slow on a large store.",
)
@click.option(
    "--reset-clock",
    is_flag=True,
    help="First set a store's clock that ran far ahead back to this machine's; it asks.",
)
@YES
@pass_door
def doctor(door: Door, deep: bool, reset_clock: bool, yes: bool) -> int:
    """Look at settings, store and workers, and say what is wrong.

    The status is 0 if nothing is wrong (warnings are no error), 5 for wrong settings, 4 if the store cannot
    be reached, 1 for anything else.
    """
    findings = Findings(versions=_versions())
    settings, problems = read(door.arguments(), **door.places)
    findings.settings = _settings(settings)
    for problem in problems:
        findings.wrong(problem, SETTINGS)
    if not problems:
        if reset_clock:
            _reset_clock(door, yes)
        _look_at_store(door, findings, deep)
    if door.as_json:
        door.out.document(vars(findings))
    else:
        _show(door, findings)
    return findings.status


def _settings(settings: Settings) -> list[dict[str, Any]]:
    from tessera.worker.settings import WorkerSettings

    defaults = WorkerSettings.__dataclass_fields__
    told = []
    for name, info in KNOWN.items():
        value = getattr(settings, name)
        if value is None:
            value = defaults[info["worker"]].default
        told.append(
            {
                "name": name,
                "value": shown_url(value) if name == "url" else value,
                "source": settings.source(name),
            }
        )
    return told


def _versions() -> dict[str, str]:
    found = {"tessera": __version__, "python": platform.python_version(), "system": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _reset_clock(door: Door, yes: bool) -> None:
    now = datetime.fromtimestamp(seam.now_ms() / 1_000, UTC)
    door.confirm(f"Set the store's clock back to {now:%Y-%m-%d %H:%M:%S} UTC, if it is ahead?", yes=yes)
    back = door.run(_set_clock_back)
    if back:
        door.out.note(
            f"the store's clock was set back by {back / 1_000:,.0f} s; what waits for an instant waits still "
            "and is listed by: tessera jobs list --state scheduled"
        )
    else:
        door.out.note("the store's clock is not ahead; nothing was changed")


async def _set_clock_back(store: Store) -> int:
    if not isinstance(store, SetsClockBack):
        raise Unsupported(store.name, "setting its clock back")
    return await store.set_clock_back()


def _look_at_store(door: Door, findings: Findings, deep: bool) -> None:
    try:
        app = door.app()
        findings.store["url"] = shown_url(app.url)
        findings.store |= door.run(_facts, app)
        findings.upkeep = door.run(lambda store: _upkeep(store, findings), app)
        findings.work = door.run(lambda store: _work(store, app, findings), app)
        _compare_clocks(findings, sets_clock_back=isinstance(app._store(), SetsClockBack))
        if deep:
            differences = door.run(lambda store: store.verify(), app)
            findings.store["verify"] = "sound" if not differences else f"{len(differences)} difference(s)"
            for difference in differences:
                findings.wrong(difference)
    except ConfigError as error:
        for problem in error.problems:
            findings.wrong(problem, SETTINGS)
    except TesseraError as error:
        findings.store["reachable"] = False
        findings.wrong(str(error), status_of(error))


async def _facts(store: Store) -> dict[str, Any]:
    found, ours = await store.schema()
    facts: dict[str, Any] = {
        "store": store.name,
        "reachable": True,
        "schema": found,
        "schema of this Tessera": ours,
    }
    facts["installation"] = store.installation.hex()
    facts["policy version"] = await store.policy_version()
    sent = seam.now_ms()
    facts[_AHEAD] = (await store.due(1, ())).now - (sent + seam.now_ms()) // 2
    if isinstance(store, Describes):
        facts |= await store.describe()
    return facts


async def _upkeep(store: Store, findings: Findings) -> dict[str, Any]:
    if not isinstance(store, Maintains):
        return {}
    condition = await store.condition()
    findings.warnings += worries(condition)
    return facts_of(condition)


async def _work(store: Store, app: Tessera, findings: Findings) -> dict[str, Any]:
    workers = await inspecting.workers(store)
    queues = await inspecting.queues(store, app._policies)
    waiting = await inspecting.waiting_kinds(store)
    served = {kind for worker in workers for kind in worker.kinds}
    unserved = {kind: count for kind, count in sorted(waiting.items()) if kind not in served}
    paused = [queue.name for queue in queues if queue.paused]
    if unserved:
        told = ", ".join(f"{kind} ({count})" for kind, count in unserved.items())
        findings.warnings.append(f"jobs wait whose kind no live worker knows: {told}")
    if paused:
        findings.warnings.append(f"paused: {', '.join(paused)}; resume with: tessera queues resume NAME")
    if unwell := [worker.name or worker.incarnation for worker in workers if worker.state == "unhealthy"]:
        findings.warnings.append(f"unhealthy workers: {', '.join(unwell)}")
    return {
        "workers alive": len(workers),
        "queues": len(queues),
        "jobs not ended": sum(queue.unfinished for queue in queues),
        "paused queues": paused,
        "unserved kinds": unserved,
    }


def _compare_clocks(findings: Findings, *, sets_clock_back: bool) -> None:
    skew = findings.store.get(_AHEAD, 0)
    if skew > _LEAD_MS and sets_clock_back:
        findings.wrong(
            f"the store's clock is {skew / 1_000:,.0f} s ahead of this machine's: some process had a clock "
            "that far ahead. Spans are right, but what waits for an instant falls due that much too early. "
            "If this machine's clock is right, run: tessera doctor --reset-clock"
        )
    elif abs(skew) > _SKEW_MS:
        findings.warnings.append(
            f"the store's clock and this machine's are {abs(skew)} ms apart; decisions go by the store's"
        )


def _show(door: Door, findings: Findings) -> None:
    lines = [f"error: {error}" for error in findings.errors] + [
        f"warning: {warning}" for warning in findings.warnings
    ]
    door.out.result(None, "\n".join(lines) or "nothing is wrong")
    door.out.heading("settings")
    rows = [(setting["name"], _with_unit(setting), setting["source"]) for setting in findings.settings]
    door.out.table(("setting", "value", "source"), rows, empty="", cut="value")
    sections: tuple[tuple[str, Mapping[str, Any]], ...] = (
        ("versions", findings.versions),
        ("store", findings.store),
        ("upkeep", {name: _lines(value) for name, value in findings.upkeep.items()}),
        ("work", findings.work),
    )
    for title, facts in sections:
        if facts:
            door.out.heading(title)
            door.out.facts(map(_told, facts.items()))


def _with_unit(setting: Mapping[str, Any]) -> object:
    """A span for people; to a program it is a number of seconds."""
    value = setting["value"]
    if KNOWN[setting["name"]]["shape"] != "SPAN" or not isinstance(value, int | float):
        return value
    return f"{value:g} s" if value >= 1 or value == 0 else f"{value * 1_000:g} ms"


def _lines(value: object) -> object:
    return "\n".join(value) if isinstance(value, list) else value


def _told(fact: tuple[str, Any]) -> tuple[str, object]:
    name, value = fact
    if name.endswith(" by ms"):
        return name.removesuffix(" by ms"), f"{value} ms"
    return name, "none" if value in ([], {}) else value
