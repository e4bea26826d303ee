"""The programs of servers: found, or installed if that is allowed, and run as a user that they accept."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path

PLACES = "/usr/lib/postgresql/*/bin", "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"


def is_allowed(what: str) -> bool:
    """Whether the environment says ``TESSERA_TEST_USE_RUNNING=1`` or ``TESSERA_TEST_INSTALL=1``."""
    return os.environ.get(f"TESSERA_TEST_{what}") == "1"


def program(name: str, package: str) -> str | None:
    """The path of a program; None if it cannot be had here."""
    found = _find(name)
    if found is None and is_allowed("INSTALL") and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(package)
        found = _find(name)
    return found


def _find(name: str) -> str | None:
    # Wrappers of a distribution may start another cluster than ours, so that the real place comes first.
    for pattern in PLACES:
        root, _, tail = pattern.partition("*")
        folders = sorted(Path("/").glob(pattern.lstrip("/")), reverse=True) if tail else [Path(root)]
        for folder in folders:
            if (folder / name).exists():
                return str(folder / name)
    return shutil.which(name)


def _install(package: str) -> None:
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


def as_server_user(command: list[str]) -> list[str]:
    """The command, run as that user."""
    user = server_user()
    if user is None:
        return command
    return ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups", *command]


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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
