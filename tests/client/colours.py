"""One face of an application in one of its two colours, and a worker's part in few words: so each promise is
written once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec

from tessera import Tessera
from tessera.engine import finishing
from tessera.engine.claiming import Claimer
from tessera.engine.finishing import Finish
from tessera.model.job import Job
from tessera.model.outcomes import Completed, Outcome


class Colour:
    """``call(handle, "result", timeout=1)`` is ``handle.result(timeout=1)`` or its awaited twin."""

    def __init__(self, app: Tessera, *, is_async: bool) -> None:
        self.app = app
        self.is_async = is_async
        self._runner = asyncio.Runner() if is_async else None

    def __enter__(self) -> Colour:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._runner is not None:
            self._runner.run(self.app.aclose())
            self._runner.close()

    def call(self, of: Any, verb: str, *args: Any, **kwargs: Any) -> Any:
        if self._runner is None:
            return getattr(of, verb)(*args, **kwargs)
        return self._runner.run(getattr(of, f"a{verb}")(*args, **kwargs))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        assert self._runner is not None
        return self._runner.run(work)


def claim(app: Tessera, queue: str = "default", n: int = 1) -> list[Job]:
    """What a worker would be given."""
    return list(
        app._run(
            lambda store: Claimer(store, app._policies, holder="h", lease_ms=30_000, kinds=None).claim(
                [queue], n, counted_limit=n
            )
        ).jobs
    )


def take(app: Tessera, queue: str = "default") -> Job:
    [job] = claim(app, queue)
    return job


def end(app: Tessera, job: Job, outcome: Outcome) -> None:
    [error] = app._run(lambda store: finishing.finish(store, [Finish(job, outcome)]))
    assert error is None


def complete(app: Tessera, job: Job, value: Any = None) -> None:
    """End a job as its handler's return would."""
    end(app, job, Completed(msgspec.json.encode(value)))


def run(app: Tessera, queue: str = "default") -> Job:
    """Claim one job, call its function, and complete it with what that returns."""
    job = take(app, queue)
    kind = app.kinds[job.kind]
    args, kwargs = kind.signature.decode(job.payload)
    end(app, job, Completed(kind.signature.encode_result(kind.function(*args, **kwargs))))
    return job
