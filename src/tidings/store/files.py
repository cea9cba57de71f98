"""The directory of a store: created whole or not at all, locked by one process, moved aside when it is damaged.

A store is made under another name, synced, and renamed. So a directory under its own name is complete, and a data file
that is missing or empty in it means damage, never "new".
"""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
from pathlib import Path

import lmdb

from tidings.store.errors import StoreBusy, StoreDamaged
from tidings.store.pages import inspect

DATA = "data.mdb"
LOCK = "lock"
SPARE_BYTES = 16 << 20  # ours: what is left to the file system, so that logs and the like can still be written


def open_environment(path: Path, map_size: int) -> lmdb.Environment:
    """LMDB as the store uses it.

    A commit syncs the data before it writes the meta page that refers to them (``sync``), but not that page
    (``metasync``): the store does this itself, so that there is one place where a group becomes durable. A power cut in
    between leaves the state before; after a mere crash the group is there, and the next opening syncs it. There is one
    thread in one process, so LMDB needs no lock file of its own.
    """
    return lmdb.open(str(path), map_size=map_size, lock=False, sync=True, metasync=False, max_dbs=0)


def create(path: Path, map_size: int, first: list[tuple[bytes, bytes]]) -> None:
    """Make a store that holds these pairs."""
    fresh = path.with_name(path.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)  # what a crash has left of an earlier attempt
    fresh.mkdir(parents=True)
    environment = open_environment(fresh, map_size)
    try:
        with environment.begin(write=True) as transaction:
            for key, value in first:
                transaction.put(key, value)
        environment.sync(True)
    finally:
        environment.close()
    (fresh / LOCK).touch()
    sync_directory(fresh)
    fresh.rename(path)
    sync_directory(path.parent)


def lock(path: Path) -> int:
    """Take the store for this process; the descriptor that holds the lock."""
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StoreBusy(f"{path} is open in another process; stop that one first") from error
    return descriptor


def look_over(path: Path) -> None:
    """Raise `StoreDamaged` unless LMDB can open the data file without harm."""
    if not (path / DATA).exists():
        raise StoreDamaged(f"{path} has no {DATA}, and a store is never without one")
    inspect(path / DATA)


def quarantine(path: Path) -> Path | None:
    """Put a store aside, whole, under a name that is free; where it is now, or None if there was none."""
    if not path.exists():
        return None
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(aside)
    sync_directory(path.parent)
    return aside


def discard(path: Path) -> None:
    """Remove a store and all its data; one that is half removed is under another name."""
    if path.exists():
        doomed = path.with_name(path.name + ".new")  # `create` removes what has this name
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
        sync_directory(path.parent)
        shutil.rmtree(doomed)


def image_of(path: Path) -> Path:
    """Where a store keeps its image."""
    return path.with_name(path.name + ".image")


def keep_image(path: Path) -> None:
    """Copy the data file beside the store, whole or not at all: what a disk would still hold after a power cut."""
    fresh = path.with_name(path.name + ".image-new")
    shutil.copyfile(path / DATA, fresh)
    fresh.rename(image_of(path))


def put_back_image(path: Path) -> None:
    """The power is cut: the store is as it was at its last completed sync. It must not be open."""
    shutil.copyfile(image_of(path), path / DATA)


def free_bytes(path: Path) -> int:
    """What the file system would still take."""
    return shutil.disk_usage(path).free


def cramped(path: Path) -> bool:
    """Whether the data file can hardly grow: the file system is nearly full, or files may not be much larger."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    near = limit != resource.RLIM_INFINITY and (path / DATA).stat().st_size + SPARE_BYTES > limit
    return near or free_bytes(path) < SPARE_BYTES


def sync_directory(path: Path) -> None:
    """Make durable which names are in a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
