"""The programs of servers: found, or installed if that is allowed, and run as a user that they accept."""

from __future__ import annotations

import fcntl
import os
import pwd
import random
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TypedDict

PLACES = "/usr/lib/postgresql/*/bin", "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"
PORTS = range(20_000, 32_000)
"""Below those that systems give to outgoing connections: one of them could take a port whose server is down
for a moment, and a client that tries such a port again and again may be connected to itself."""


def is_allowed(what: str) -> bool:
    """Whether the environment says ``TESSERA_TEST_USE_RUNNING=1`` or ``TESSERA_TEST_INSTALL=1``."""
    return os.environ.get(f"TESSERA_TEST_{what}") == "1"


def program(name: str, package: str) -> str | None:
    """The path of a program; None if it cannot be had here."""
    found = _find(name)
    if found is None and is_allowed("INSTALL") and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(name, package)
        found = _find(name)
    return found


def why_not_installed(package: str) -> str:
    """Why ``program`` found nothing, in words that name what would help."""
    if not is_allowed("INSTALL"):
        return "none is installed (TESSERA_TEST_INSTALL=1 may install one)"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return f"none is installed, and only root with apt-get can install one: install {package} yourself"
    return f"apt-get install {package} brought none"


def _find(name: str) -> str | None:
    # Wrappers of a distribution may start another cluster than ours, so that the real place comes first.
    for pattern in PLACES:
        root, _, tail = pattern.partition("*")
        folders = sorted(Path("/").glob(pattern.lstrip("/")), key=_version) if tail else [Path(root)]
        for folder in reversed(folders):
            if (folder / name).exists():
                return str(folder / name)
    return shutil.which(name)


def _version(folder: Path) -> tuple[int, str]:
    """9.6 stands before 15."""
    major = folder.parent.name.partition(".")[0]
    return (int(major) if major.isdecimal() else 0, folder.parent.name)


def _install(name: str, package: str) -> None:
    """One process at a time; the others find what it brought."""
    lock = os.open(Path(__file__).parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _find(name) is None:
            _apt_get(package)
    finally:
        os.close(lock)


def _apt_get(package: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    # Without a service of its own: what a test needs, it starts.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        for command in (["apt-get", "-qq", "update"], ["apt-get", "-qq", "-y", "install", package]):
            subprocess.run(command, env=environment, capture_output=True, timeout=600, check=False)
    finally:
        if ours:
            policy.unlink()


def server_user() -> str | None:
    """The user that a server runs as: None = this one. Servers refuse to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    return None


class Identity(TypedDict, total=False):
    """What ``subprocess`` wants to know of a user."""

    user: int
    group: int
    extra_groups: list[int]


def server_identity() -> Identity:
    """``server_user`` for ``subprocess``."""
    name = server_user()
    if name is None:
        return {}
    entry = pwd.getpwnam(name)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def hand_over(folder: Path) -> None:
    """Give a folder to the user that the server runs as."""
    user = server_user()
    if user is not None:
        shutil.chown(folder, user)
        for parent in folder.parents:
            if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o011)


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            # As servers do: what is left of connections that have ended is in nobody's way.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_alive(pid: int) -> bool:
    """Whether the process runs. One that has ended and that nobody has asked after does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        # Not a Linux, or it ended this moment.
        return not Path("/proc/self").exists()
    return state not in (b"Z", b"X")
