"""What lies below the file: whether SQLite may trust it.

SQLite's locks and its shared WAL index need a file system of this machine. On a network file system two hosts can both
believe that they hold the lock, and the file is lost; so it is refused, not warned about.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perdure.core.limits import MIB
from perdure.errors import StoreError

MOUNTS: Path = Path("/proc/mounts")
"""The kernel's table of mounts; where there is none, the type stays unknown."""

_SHARES: Final = frozenset(
    {"9p", "afs", "cifs", "coda", "davfs", "ncpfs", "nfs", "nfs4", "smb", "smb2", "smb3", "smbfs"}
)
_CLUSTERS: Final = frozenset({"beegfs", "ceph", "gfs2", "glusterfs", "gpfs", "lustre", "ocfs2", "orangefs"})
_MOUNTED_BY_PROGRAMS: Final = frozenset({"davfs2", "gcsfuse", "glusterfs", "rclone", "s3fs", "sshfs"})
NETWORK_TYPES: Final = _SHARES | _CLUSTERS | {f"fuse.{name}" for name in _MOUNTED_BY_PROGRAMS}

FREE_BYTES_MIN: Final = 512 * MIB
"""Below this, `doctor` warns: a busy worker writes as much in minutes."""

SYNC_S_MAX: Final = 0.05
"""A sync slower than this on an idle disk makes every small commit slow."""

SYNCS_MEASURED: Final = 5


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a file system is attached, and its type."""

    point: Path
    type: str

    @property
    def is_network(self) -> bool:
        return self.type in NETWORK_TYPES


def mount_of(path: Path) -> Mount | None:
    """The mount that holds the path; None where the system does not tell. The later of two on one point hides the
    earlier."""
    found: Mount | None = None
    for mount in _mounts():
        if path.is_relative_to(mount.point) and (found is None or len(mount.point.parts) >= len(found.point.parts)):
            found = mount
    return found


def check_place(path: Path) -> None:
    """Refuse a place where the database cannot live, with what to do about it."""
    directory = path.parent
    if not directory.is_dir():
        raise StoreError(f"{path}: the directory {directory} does not exist; create it, or give another path")
    if path.is_dir():
        raise StoreError(f"{path} is a directory; give the path of a file in it")
    for place in (directory, *([path] if path.exists() else [])):
        if not os.access(place, os.W_OK):
            raise StoreError(f"{path}: {place} is read-only for this user; make it writable, or give another path")
    mount = mount_of(path)
    if mount is not None and mount.is_network:
        raise StoreError(
            f"{path} lies on a network file system ({mount.type} at {mount.point}), where SQLite's locks do not hold; "
            f"use a local disk, or Postgres (postgresql://…) for several hosts"
        )


def free_bytes(directory: Path) -> int:
    """What this user may still write there."""
    return shutil.disk_usage(directory).free


def sync_s(directory: Path) -> float:
    """The median time of a small write with its sync."""
    times = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(SYNCS_MEASURED):
            began = time.perf_counter()
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def _mounts() -> list[Mount]:
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    fields = [line.split() for line in lines]
    return [Mount(Path(_unescape(each[1])), each[2]) for each in fields if len(each) > 2]


def _unescape(text: str) -> str:
    """The table writes blanks in a path as octal escapes."""
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, character)
    return text
