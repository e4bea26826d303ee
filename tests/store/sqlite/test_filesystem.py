"""SQLite is refused where its locks or its shared memory cannot be trusted."""

from __future__ import annotations

import pytest

from tessera.model.errors import UnsafeFilesystem
from tessera.store.sqlite import SqliteFile, filesystem
from tests.store.sqlite.rig import Handle

MOUNTS = r"""
overlay / overlay rw,relatime 0 0
proc /proc proc rw 0 0
/dev/sda1 /home ext4 rw 0 0
server:/export /home/ada/net nfs4 rw,vers=4.2 0 0
//server/share /mnt/two\040words cifs rw 0 0
ada@host:/ /mnt/far fuse.sshfs rw 0 0
/dev/sdb1 /mnt/stick fuseblk rw 0 0
tmpfs /mnt/covered nfs rw 0 0
tmpfs /mnt/covered tmpfs rw 0 0
broken line
"""


@pytest.mark.parametrize(
    "path,kind,place",
    [
        ("/var/work.db", "overlay", "/"),
        ("/home/ada/work.db", "ext4", "/home"),
        ("/home/ada/net/work.db", "nfs4", "/home/ada/net"),
        ("/home/ada/network.db", "ext4", "/home"),
        ("/mnt/two words/work.db", "cifs", "/mnt/two words"),
        ("/mnt/far/a/b/work.db", "fuse.sshfs", "/mnt/far"),
        ("/mnt/covered/work.db", "tmpfs", "/mnt/covered"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_longest_mount_point(path, kind, place):
    assert filesystem.mount_of(path, MOUNTS) == (kind, place)


def test_a_path_under_no_mount_point_is_of_no_known_kind():
    assert filesystem.mount_of("/a", "nothing") == ("", "")
    assert not filesystem.is_unsafe("")


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "fuse.glusterfs"]
)
def test_network_file_systems_are_unsafe(kind):
    assert filesystem.is_unsafe(kind)


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "fuse.mergerfs"]
)
def test_local_file_systems_are_safe(kind):
    assert not filesystem.is_unsafe(kind)


@pytest.fixture
def unsafe_mounts(tmp_path, monkeypatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/ {tmp_path} nfs rw 0 0\n")
    monkeypatch.setattr(filesystem, "MOUNTS", str(mounts))


@pytest.mark.usefixtures("unsafe_mounts")
def test_a_file_on_a_network_is_refused_before_anything_is_written(path, tmp_path):
    with pytest.raises(UnsafeFilesystem, match="nfs"):
        Handle(SqliteFile(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["mounts"]


@pytest.mark.usefixtures("unsafe_mounts")
def test_who_knows_better_may_use_it(open_handle):
    assert open_handle(unsafe_filesystem=True).add("a")


def test_where_no_mounts_can_be_read_nothing_is_refused(path, monkeypatch, tmp_path):
    monkeypatch.setattr(filesystem, "MOUNTS", str(tmp_path / "absent"))
    filesystem.refuse_unsafe(path)
