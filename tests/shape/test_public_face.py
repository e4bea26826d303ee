"""Every public name is there, documented, and the same in both colours; the rules are tested too."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import ModuleType

import pytest

import tessera
from tests.shape.public_face import public_classes, twin_differences, twins, undocumented


def test_every_name_in_all_exists():
    assert [name for name in tessera.__all__ if not hasattr(tessera, name)] == []


def test_every_public_name_has_a_docstring():
    assert undocumented(tessera) == []


def test_twins_have_the_same_parameters():
    assert [line for cls in public_classes(tessera) for line in twin_differences(cls)] == []


def test_the_twins_of_the_public_face_are_found():
    """Without this, a change of how twins are made could leave the comparison with nothing to compare."""
    found = {name for cls in public_classes(tessera) for name, _, _ in twins(cls)}
    assert {"close", "enqueue", "enqueue_many", "result"} <= found


# ------------------------------------------------------------------ the rules bite


class Lists:
    """Handed out by a property."""

    def get(self, key: str) -> str:
        """One."""
        return key

    async def aget(self, name: str) -> str:
        """One."""
        return name


class Face:
    """A small public class."""

    @property
    def lists(self) -> Lists:
        """What it holds."""
        return Lists()

    def close(self) -> None:
        """End."""

    async def aclose(self) -> None:
        """End."""

    def walk(self, limit: int = 10) -> list[int]:
        """All."""
        return [limit]

    def awalk(self, limit: int = 20) -> AsyncIterator[int]:
        """All."""
        raise NotImplementedError

    def dd(self) -> None:
        """Not the twin of ``add``, which nobody awaits."""

    def add(self, value: int) -> None:
        """Put."""

    def bare(self):
        pass


class Undocumented:
    pass


@dataclass(frozen=True)
class OnlyGenerated:
    size: int


def face_package() -> ModuleType:
    package = ModuleType(Face.__module__.partition(".")[0])
    names = {
        "Face": Face,
        "Undocumented": Undocumented,
        "OnlyGenerated": OnlyGenerated,
        "limit": 3,
        "silent": lambda: 1,
    }
    vars(package).update(names, __all__=sorted(names))
    return package


def test_missing_and_generated_docstrings_are_found():
    assert undocumented(face_package()) == ["Face.bare", "OnlyGenerated", "Undocumented", "silent"]


def test_classes_behind_properties_count_as_public():
    assert Lists in public_classes(face_package())


@pytest.mark.parametrize(
    "cls, lines",
    [
        (Lists, ["Lists.get(self, key: str) but aget(self, name: str)"]),
        (Face, ["Face.walk(self, limit: int = 10) but awalk(self, limit: int = 20)"]),
    ],
)
def test_differing_twins_are_found(cls, lines):
    assert twin_differences(cls) == lines


def test_only_what_is_awaited_makes_a_twin():
    assert sorted(name for name, _, _ in twins(Face)) == ["close", "walk"]
