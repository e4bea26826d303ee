"""Skips that come from the capability table: what a store honestly lacks, and why."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

LISTED = Path(__file__).parent.parent / "docs" / "capabilities.toml"


def skip_unless_offered(store: str, capability: str) -> None:
    """Skip the test if the table says that this store lacks the capability; the reason is the table's."""
    absent = tomllib.loads(LISTED.read_text(encoding="utf-8")).get("absent", {})
    reason = absent.get(store, {}).get(capability)
    if reason is not None:
        pytest.skip(f"not offered: {store}, {capability}: {reason}")
