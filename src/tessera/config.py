"""Settings: argument, then ``TESSERA_*``, then ``tessera.toml``, then default. Each value remembers where it
came from.

Everything wrong is told at once, since whoever mends settings by deploying wants one round and not five. What
a worker is told has its defaults in ``WorkerSettings``; here None stands for "as the worker says", so that
each default is written once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from tessera.model.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path  # imported where a file is looked for: ``import tessera`` needs none

DEFAULT_URL: Final = "sqlite:///tessera.db"
FILE_NAME: Final = "tessera.toml"
PREFIX: Final = "TESSERA_"
FILE_VARIABLE: Final = "TESSERA_CONFIG"
"""Names another file than the nearest tessera.toml."""
DEFAULT: Final = "default"
"""The source of a value that nobody gave."""

_UNITS: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)")
_FLAGS: Final = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


# Readers: text from an argument or the environment, or a value from the file. ValueError says what is wrong.


def read_text(value: object) -> str:
    """A text that says something."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"is {value!r}; give a text")
    return value


def read_whole(value: object) -> int:
    """A whole number.

    >>> read_whole("12")
    12
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,18}\s*", value):
        return int(value)
    raise ValueError(f"is {value!r}; give a whole number")


def read_span(value: object) -> float:
    """Seconds, from a number or from a number with a unit.

    >>> read_span("1.5h"), read_span(20), read_span("250ms")
    (5400.0, 20.0, 0.25)
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    if isinstance(value, str):
        match = _SPAN.fullmatch(value.strip().lower())
        if match and match[2] in _UNITS:
            return float(match[1]) * _UNITS[match[2]]
    raise ValueError(f"is {value!r}; give seconds, or a number with ms, s, m, h or d")


def read_flag(value: object) -> bool:
    """Yes or no."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _FLAGS:
        return _FLAGS[value.strip().lower()]
    raise ValueError(f"is {value!r}; give true or false")


def read_queues(value: object) -> list[str] | dict[str, float]:
    """Names in order, or names with weights as soon as one has a weight.

    >>> read_queues("critical=6, low"), read_queues("a,b")
    ({'critical': 6.0, 'low': 1.0}, ['a', 'b'])
    """
    if isinstance(value, Mapping):
        return {str(name): _weight(weight) for name, weight in value.items()}
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, list) or not all(isinstance(part, str) and part for part in value):
        raise ValueError(f"is {value!r}; give names, or names with weights, as in mail,reports=3")
    pairs = [part.partition("=") for part in value]
    if not any(equals for _, equals, _ in pairs):
        return list(value)
    if len({name.strip() for name, _, _ in pairs}) < len(pairs):
        raise ValueError("names one queue twice")
    return {name.strip(): _weight(weight) if equals else 1.0 for name, equals, weight in pairs}


def _weight(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # whatever it is not, is told below
    except (TypeError, ValueError):
        raise ValueError(f"has the weight {value!r}; give a number") from None


def _whole(least: int, most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        number = read_whole(value)
        if not least <= number <= most:
            raise ValueError(f"is {number}; it lies between {least} and {most}")
        return number

    return read


def _choice(*allowed: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if isinstance(value, str) and value.lower() in allowed:
            return value.lower()
        raise ValueError(f"is {value!r}; it is one of {', '.join(allowed)}")

    return read


# The settings -----------------------------------------------------------------------------------------------


def _setting(
    default: Any,  # noqa: ANN401  of the field's own type
    read: Callable[[object], object],
    shape: str,
    meaning: str,
    worker: str = "",
) -> Any:  # noqa: ANN401  as dataclasses.field itself
    return field(
        default=default, metadata={"read": read, "shape": shape, "meaning": meaning, "worker": worker}
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What was said, and by whom. A worker's settings at None are as ``WorkerSettings`` has them.

    >>> settings = load({"concurrency": "4"}, environ={"TESSERA_LEASE": "1m"}, directory=None)
    >>> settings.concurrency, settings.lease, settings.sources["lease"]
    (4, 60.0, 'TESSERA_LEASE')
    """

    url: str = _setting(DEFAULT_URL, read_text, "URL", "The store: sqlite:///FILE or memory://.")
    app: str = _setting("", read_text, "MODULE:APP", "The application: where its Tessera object is found.")
    queues: list[str] | dict[str, float] | None = _setting(  # noqa: RUF009  it is dataclasses.field
        None, read_queues, "NAME[=WEIGHT],...", "Queues a worker serves, with weights or in order.", "queues"
    )
    strict: bool | None = _setting(
        None, read_flag, "FLAG", "Serve queues strictly in the given order.", "mode"
    )
    concurrency: int | None = _setting(None, read_whole, "N", "Handlers running at once.", "concurrency")
    lease: float | None = _setting(
        None, read_span, "SPAN", "How long a claim lasts without a sign of life.", "lease_seconds"
    )
    grace: float | None = _setting(
        None, read_span, "SPAN", "How long a stop waits for running handlers.", "grace_seconds"
    )
    prefetch: int | None = _setting(
        None,
        read_whole,
        "N",
        "Jobs claimed beyond the free slots; unset = at most a second of work.",
        "prefetch",
    )
    name: str | None = _setting(None, read_text, "TEXT", "What the worker is called in lists.", "name")
    cancel_grace: float | None = _setting(
        None,
        read_span,
        "SPAN",
        "From being asked to stop to being killed or given up.",
        "cancel_grace_seconds",
    )
    claim_watchdog: float | None = _setting(
        None,
        read_span,
        "SPAN",
        "No successful claim for so long makes the worker unhealthy.",
        "claim_watchdog_seconds",
    )
    hang: float | None = _setting(
        None,
        read_span,
        "SPAN",
        "A handler that ignores a stop for so long is logged with its stack.",
        "hang_seconds",
    )
    lag: float | None = _setting(
        None,
        read_span,
        "SPAN",
        "An event loop that stands still for so long is logged with its stack.",
        "lag_seconds",
    )
    sweep: float | None = _setting(
        None, read_span, "SPAN", "How often due jobs and lapsed leases are looked for.", "sweep_seconds"
    )
    ready: float | None = _setting(
        None, read_span, "SPAN", "Most time a child process of a handler takes to start.", "ready_seconds"
    )
    processes: int = _setting(1, _whole(1, 1_000), "N", "Worker processes under one supervisor.")
    health_port: int = _setting(
        0, _whole(0, 65_535), "PORT", "Loopback port that answers /live and /ready; 0 = none."
    )
    ready_file: str = _setting("", read_text, "FILE", "File that is there while the worker is ready.")
    log_level: str = _setting(
        "info",
        _choice("debug", "info", "warning", "error"),
        "LEVEL",
        "What is logged: debug, info, warning or error.",
    )
    log_format: str = _setting(
        "text", _choice("text", "json"), "FORMAT", "How it is logged: text, or json lines."
    )
    sources: Mapping[str, str] = field(default_factory=dict)
    """Setting -> the argument, variable or file that gave it. Those not named are defaults."""

    def source(self, name: str) -> str:
        """Where the value of a setting comes from."""
        return self.sources.get(name, DEFAULT)

    def worker(self) -> dict[str, Any]:
        """What was said of the worker, under the names of ``WorkerSettings``."""
        said: dict[str, Any] = {}
        for name, info in KNOWN.items():
            value = getattr(self, name)
            if info["worker"] and value is not None:
                said[info["worker"]] = ("strict" if value else "weighted") if name == "strict" else value
        return said


KNOWN: Final[Mapping[str, Mapping[str, Any]]] = {
    each.name: each.metadata for each in fields(Settings) if each.metadata
}
"""Every setting by name: how it is read, its shape, its meaning, and its name in ``WorkerSettings``."""


def load(
    arguments: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    directory: Path | None,
    file: str = "",
) -> Settings:
    """Read the settings. ``directory`` is where the search for tessera.toml begins, None = no search;
    ``file`` names one.

    Raises ConfigError with every problem, each with its source.
    """
    settings, problems = read(arguments, environ=environ, directory=directory, file=file)
    if problems:
        raise ConfigError(problems)
    return settings


def read(
    arguments: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    directory: Path | None,
    file: str = "",
) -> tuple[Settings, list[str]]:
    """What ``load`` reads, with the problems beside it: for callers that have more to check before they
    raise."""
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, value, source in [
        *_from_file(directory, file or environ.get(FILE_VARIABLE, ""), problems),
        *_from_environment(environ, problems),
        *(
            (name, value, f"--{name.replace('_', '-')}")
            for name, value in (arguments or {}).items()
            if value is not None
        ),
    ]:
        info = KNOWN.get(name)
        if info is None:
            problems.append(f"{source}: {name}: is no setting{_nearest(name)}")
            continue
        try:
            values[name] = info["read"](value)
            sources[name] = source
        except ValueError as error:
            problems.append(f"{source}: {name}: {error}")
    return Settings(**values, sources=sources), problems


def find_url(environ: Mapping[str, str] | None = None, directory: Path | None = None) -> str:
    """The store's URL for an application that names none: ``$TESSERA_URL``, else tessera.toml, else the
    default.

    Only the URL is looked at: a wrong setting of the worker is no business of a producer. Raises
    ConfigError.
    """
    environ = os.environ if environ is None else environ
    if url := environ.get(f"{PREFIX}URL"):
        return url
    from pathlib import Path

    problems: list[str] = []
    start = Path.cwd() if directory is None else directory
    found = _from_file(start, environ.get(FILE_VARIABLE, ""), problems)
    if problems:
        raise ConfigError(problems)
    for name, value, source in found:
        if name == "url":
            try:
                return read_text(value)
            except ValueError as error:
                raise ConfigError([f"{source}: url: {error}"]) from None
    return DEFAULT_URL


def shown_url(url: str) -> str:
    """The URL without its password.

    >>> shown_url("postgresql://ada:secret@db/work")
    'postgresql://ada:***@db/work'
    """
    from urllib.parse import urlsplit, urlunsplit  # loads ipaddress

    try:
        parts = urlsplit(url)
    except ValueError:  # no URL: nobody knows where a password would stand
        return url if "@" not in url else "***"
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    return urlunsplit(parts._replace(netloc=f"{name}:***@{host}")) if at and colon else url


def _from_file(directory: Path | None, file: str, problems: list[str]) -> list[tuple[str, object, str]]:
    from pathlib import Path

    path = Path(file) if file else _nearest_file(directory)
    if path is None:
        return []
    import tomllib

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
        return []
    except (ValueError, RecursionError) as error:
        problems.append(f"{path}: is not TOML: {error}")
        return []
    table = document.get("tessera")
    if not isinstance(table, dict):
        stray = sorted(document.keys() & KNOWN.keys())
        if stray or "tessera" in document or file:
            hint = f"; put {', '.join(stray)} under [tessera]" if stray else ""
            problems.append(f"{path}: has no table [tessera]{hint}")
        return []
    return [(name.replace("-", "_"), value, str(path)) for name, value in table.items()]


def _nearest_file(directory: Path | None) -> Path | None:
    if directory is None:
        return None
    for folder in (directory, *directory.parents):
        path = folder / FILE_NAME
        if path.is_file():
            return path
    return None


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> list[tuple[str, object, str]]:
    """Variables that name a setting. An empty one says nothing.

    Others that begin so are no mistake by themselves: Kubernetes sets TESSERA_PORT and more for a service
    called tessera. Only what is nearly a setting's name is taken for a misspelt one.
    """
    found: list[tuple[str, object, str]] = []
    for variable, value in environ.items():
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or not value or variable == FILE_VARIABLE:
            continue
        if name in KNOWN:
            found.append((name, value, variable))
        elif not name.startswith("test_") and (near := get_close_matches(name, KNOWN, n=1, cutoff=0.85)):
            problems.append(f"{variable}: is no setting; did you mean {PREFIX}{near[0].upper()}?")
    return found


def _nearest(name: str) -> str:
    near = get_close_matches(name, KNOWN, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(KNOWN)}"
