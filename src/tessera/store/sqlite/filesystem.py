"""Where SQLite must not lie: file systems on which locks or shared memory are not what they seem.

The write-ahead log needs memory shared by all processes on the file, which no network file system gives,
and locks that hold, which few give. The damage is silent, so it is refused and not warned about. Only Linux
says what is mounted in a file that can be read without a privilege; elsewhere (macOS, Windows) nothing is
known here and nothing is refused.
"""

from __future__ import annotations

import os
import re
from typing import Final

from tessera.model.errors import UnsafeFilesystem

MOUNTS: Final = "/proc/self/mounts"

UNSAFE: Final = frozenset(
    """
    9p acfs afs afpfs beegfs ceph cifs coda davfs drvfs gfs gfs2 glusterfs gpfs lustre ncp ncpfs nfs nfs4
    ocfs2 orangefs panfs prl_fs pvfs2 smb2 smb3 smbfs vboxsf virtiofs vmhgfs
    """.split()
)
UNSAFE_FUSE: Final = frozenset(
    """
    beegfs ceph ceph-fuse curlftpfs davfs2 gcsfuse glusterfs google-drive-ocamlfuse goofys juicefs lizardfs
    mfs moosefs mount.davfs mount-s3 osxfs rclone s3fs s3ql seaweedfs sshfs vmhgfs-fuse
    """.split()
)
"""What stands behind ``fuse.``."""

_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def refuse_unsafe(path: str) -> None:
    """Raise UnsafeFilesystem if the file lies, or would lie, where SQLite cannot be trusted."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            mounts = file.read()
    except OSError:
        return
    kind, place = mount_of(os.path.realpath(path), mounts)
    if is_unsafe(kind):
        raise UnsafeFilesystem(
            f"{path} lies on {place}, a {kind} file system, where SQLite's locks cannot be trusted; "
            "use a local disk or another store, or say unsafe_filesystem=1 if one machine alone ever opens it"
        )


def is_unsafe(kind: str) -> bool:
    """Whether SQLite is refused on this type of file system."""
    if kind.startswith(("fuse.", "fuseblk.")):
        return kind.split(".", 1)[1] in UNSAFE_FUSE
    return kind in UNSAFE


def mount_of(path: str, mounts: str) -> tuple[str, str]:
    """(type, mount point) of the file system that holds a path, from the text of ``/proc/mounts``; ('', '')
    if none does.

    The longest mount point wins, of two equal ones the later, which covers the other.
    """
    found = ("", "")
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        place = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[1])
        holds = path == place or path.startswith(place.rstrip("/") + "/")
        if holds and len(place) >= len(found[1]):
            found = (fields[2], place)
    return found
