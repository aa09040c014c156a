"""Files that stay whole whatever happens: atomic replace, append that is on disk, locks between processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from wardround.errors import WardroundError

__all__ = [
    "UNFINISHED",
    "LockHeld",
    "append_text",
    "can_lock",
    "is_locked",
    "locked",
    "make_private_folder",
    "replace_file",
    "replacing",
    "sync",
    "sync_file",
]

UNFINISHED = ".tmp"
"""The end of the name under which a file is written before it replaces the old one."""


class LockHeld(WardroundError):
    """Another process, or another part of this one, holds the lock."""


def replace_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file so that readers see the old content or the new one, never half of it.

    Args:
        path: The file; its folder exists.
        content: All of it.
        mode: Its permissions, such as 0o600 for a secret; by default those of any new file.
    """
    with replacing(path, mode) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[Path]:
    """Give a path to write to, which becomes `path` when the block ends well and vanishes when it does not.

    The new file is on the disk before it gets its name: after a power cut there is the old content or the new one.
    Two writers of one file need a lock; they would share the temporary name.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "numbers.txt"
    >>> with replacing(path) as temporary:
    ...     _ = temporary.write_text("1 2 3")
    >>> path.read_text()
    '1 2 3'
    """
    temporary = path.with_name(path.name + UNFINISHED)
    try:
        if mode is not None:  # nobody else can open the file before its permissions are set
            temporary.unlink(missing_ok=True)
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield temporary
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def make_private_folder(path: Path) -> None:
    """Make a folder for its owner only (0700), whatever the umask; folders above it that are missing get the same.

    A folder that is there already keeps its mode: whoever changed it had a reason.
    """
    if path.is_dir():
        return
    make_private_folder(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
        return  # another process was faster
    path.chmod(0o700)  # the umask takes bits away from mkdir's mode, and may take the owner's


def append_text(path: Path, text: str, mode: int = 0o666, durable: bool = True) -> None:
    """Append to a file, which is made with `mode` where it is missing.

    The text is on the disk when this returns; where it need not be `durable`, only in the file, for all who read it:
    `sync_file` brings it onto the disk.
    """
    is_new = durable and not path.exists()
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(text.encode())
        if durable:
            sync(file)
    if is_new:
        _sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Bring what was appended to a file onto the disk; nothing where there is no file.

    Its name, if new, is there when another file of its folder is replaced.
    """
    with suppress(FileNotFoundError), open(path, "rb+") as file:
        sync(file)


def sync(file: BinaryIO) -> None:
    """Bring what was written to an open file onto the disk."""
    file.flush()
    os.fsync(file.fileno())


def can_lock() -> bool:
    """Does this platform have locks that end with the process?"""
    try:
        _fcntl()
    except WardroundError:
        return False
    return True


@contextmanager
def locked(path: Path, wait: bool = True, shared: bool = False) -> Iterator[BinaryIO]:
    """Hold a lock on a file; it ends with the block or with the process, however that ends.

    Args:
        path: The file, made where it is missing; an existing one when the lock is `shared`.
        wait: Wait for who holds it, else raise `LockHeld`.
        shared: Hold it together with other readers, who together keep writers off.

    Yields:
        The open file: for appending and reading, for reading only when the lock is shared.
    """
    fcntl = _fcntl()
    with open(path, "rb" if shared else "a+b") as file:
        kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        try:
            fcntl.flock(file, kind)
        except BlockingIOError:
            raise LockHeld(f"{path}: another process holds this lock") from None
        yield file


def is_locked(path: Path) -> bool:
    """Does a process hold this lock exclusively? Asks the kernel; does not get in the way of who wants it."""
    try:
        inode = path.stat().st_ino
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    # 1: FLOCK  ADVISORY  WRITE 4242 08:01:1180418 0 EOF
    held = (line.split() for line in locks)
    return any("WRITE" in words and words[5].endswith(f":{inode}") for words in held if len(words) > 5)


def _fcntl() -> ModuleType:
    """Import when a lock is used, so that everything else works where there is no fcntl."""
    try:
        import fcntl
    except ModuleNotFoundError:
        raise WardroundError(f"locks between processes need Linux or macOS; this is {sys.platform}") from None
    return fcntl


def _sync_folder(folder: Path) -> None:
    """A new name is on the disk when its folder is."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
