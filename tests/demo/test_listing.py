"""Which files are worked on."""

import asyncio
import os
import subprocess

import pytest

from tessera.demo.listing import Listing, list_files, read_listing, replace_file, write_listing
from tessera.demo.spelling import read_spelling


def names(listing: Listing) -> list[str]:
    return [file.path for file in listing.files]


def listed(folder) -> Listing:
    return asyncio.run(list_files(str(folder)))


@pytest.fixture
def git(tmp_path):
    """A checkout, and a function that runs git in it."""
    place = tmp_path / "checkout"
    place.mkdir()
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(tmp_path)}

    def run(*arguments: str) -> None:
        subprocess.run(
            ["git", *arguments], cwd=place, check=True, capture_output=True, env={**os.environ, **alone}
        )

    run("init", "-q")
    return place, run


def test_in_a_checkout_the_tracked_files_are_listed(git):
    place, run = git
    (place / "b.txt").write_text("b")
    (place / "sub").mkdir()
    (place / "sub" / "a.txt").write_text("a")
    (place / "untracked.txt").write_text("u")
    run("add", "b.txt", "sub/a.txt")
    listing = listed(place)
    assert names(listing) == ["b.txt", "sub/a.txt"]
    assert listing.how == "tracked by git"
    assert names(listed(place / "sub")) == ["a.txt"]


def test_a_tracked_file_that_was_deleted_is_not_listed(git):
    place, run = git
    for name in ("gone", "here"):
        (place / name).write_text(name)
    run("add", ".")
    (place / "gone").unlink()
    assert names(listed(place)) == ["here"]


def test_a_folder_of_which_git_tracks_nothing_is_walked(git):
    place, _ = git
    (place / "new.txt").write_text("n")
    listing = listed(place)
    assert names(listing) == ["new.txt"]
    assert listing.how == "found below it"


def test_without_git_the_folder_is_walked(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    (tmp_path / "file").write_text("x")
    assert names(listed(tmp_path)) == ["file"]


def test_folders_that_tools_made_are_skipped(tmp_path):
    for folder in (".git", ".venv", "__pycache__", "tessera-demo", "env", "cache", "src"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text(folder)
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "cache" / "CACHEDIR.TAG").write_text("")
    assert names(listed(tmp_path)) == ["src/file"]


def test_links_are_listed_and_not_followed_and_pipes_are_neither(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("x")
    (tmp_path / "to-folder").symlink_to("folder")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to(".")
    os.mkfifo(tmp_path / "pipe")
    assert names(listed(tmp_path)) == ["dangling", "folder/file", "loop", "to-folder"]


def test_odd_names_are_listed_and_lead_back_to_their_files(tmp_path):
    place = os.fsencode(tmp_path)
    odd = [b"new\nline", b"\xff\xfe", b"back\\slash"]
    for name in odd:
        with open(os.path.join(place, name), "wb") as file:
            file.write(name)
    assert sorted(read_spelling(path) for path in names(listed(tmp_path))) == sorted(odd)


def test_a_folder_that_cannot_be_looked_into_is_told(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    (tmp_path / "file").write_text("x")
    scandir = os.scandir

    def refusing(path):
        if os.fsencode(path).endswith(b"closed"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    listing = listed(tmp_path)
    assert names(listing) == ["file"]
    assert listing.closed == ("closed: Permission denied",)


def test_an_empty_folder_has_no_files(tmp_path):
    assert listed(tmp_path).files == ()


def test_a_listing_comes_back_from_its_file(tmp_path):
    (tmp_path / "f").write_text("x")
    listing = listed(tmp_path)
    write_listing(tmp_path / "listing.json", listing)
    assert read_listing(tmp_path / "listing.json") == listing


def test_a_replaced_file_leaves_nothing_beside_it(tmp_path):
    replace_file(tmp_path / "f", b"one")
    replace_file(tmp_path / "f", b"two")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("f", b"two")]
