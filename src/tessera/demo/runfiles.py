"""Where one run keeps what."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFiles:
    """The files of one run, all in a folder of its own."""

    folder: Path

    @property
    def store(self) -> Path:
        """The embedded store, unless another was named."""
        return self.folder / "demo.db"

    @property
    def report(self) -> Path:
        """The report for programs."""
        return self.folder / "report.json"

    @property
    def markdown(self) -> Path:
        """The report for people."""
        return self.folder / "report.md"

    @property
    def history(self) -> Path:
        """One line a run, written under the lock."""
        return self.folder / "history.jsonl"

    @property
    def lock(self) -> Path:
        """The lock of the history."""
        return self.folder / "history.lock"

    @property
    def document(self) -> Path:
        """A document that is not what its name claims."""
        return self.folder / "cut-off.json"

    def listing(self, number: int) -> Path:
        """What there was to work on in the round with this number."""
        return self.folder / f"inputs-{number}.json"
