"""A tree of overlays: everything is read-only, and folders that may be written to have private copies.

An overlay with its upper layer in memory is the usual copy, and one without an upper layer is what is only
read. The kernel allows none over a folder in which other file systems are mounted (it would show what they
hide), and over some file systems. Such a folder is made again, entry by entry: its folders are covered one by
one, small files are copied, large ones are shown read-only, and what is beyond a number of folders, or on
such a file system and named by nobody, is empty.

Copying up a folder or file needs its owner and group to exist in the user namespace, which has only one of
each. So folders of a colleague's or of another group that may be written to are made in the upper layer
beforehand, where they merge with what is below; small files of that kind are copied, and others when
Python opens them (`follow.written_files`).
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from typing import Dict, Iterator, List, NamedTuple, Sequence, Set

from slurm_gpumem.tracing.guard.mounts import KERNEL, Mount, is_below
from slurm_gpumem.tracing.guard.syscalls import BIND, RDONLY, make_read_only, mount

_SMALL_BYTES, _SMALL_IN_ALL = 8 << 20, 128 << 20
_SHARE = 4
"""Of the space for all that is written, the part that copies made beforehand may take."""
_MOST_ENTRIES, _MOST_REMADE = 1000, 300
_FILL_S = 0.6
"""For all folders together: homes can be large, and people wait."""
_NEVER_WRITTEN = {".git", "site-packages", "node_modules", "__pycache__", "pkgs"}


class Copied(NamedTuple):
    """A folder below the base, and where the command sees it."""

    folder: str
    shown: str


class PrivateCopies:
    """Covers folders below the new root; all that is written lies below `base`, in memory."""

    def __init__(
        self, base: str, root: str, mounts: List[Mount], hot: Sequence[str], left_out: Set[str]
    ) -> None:
        self._base, self._root, self._left_out = base, root, left_out
        self._hot = hot
        self._kinds: Dict[str, str] = {mount.point: mount.kind for mount in mounts}
        self._copied_bytes = 0
        space = os.statvfs(base)
        # What the command writes needs the most of it.
        self._most_copied = min(_SMALL_IN_ALL, space.f_blocks * space.f_frsize // _SHARE)
        self._number = self._remade = 0
        self._seconds = _FILL_S
        self._empty = self._new_folder("empty")
        self.made: List[Copied] = []
        self.points: Set[str] = set()
        """Where the command may write."""
        self.put: Dict[str, int] = {}
        """Files that were put below the base beforehand, with the time of their last change."""

    def show_all(self) -> None:
        """All files, read-only."""
        self._remake("/", self._root)

    def cover(self, path: str) -> bool:
        """Whether there is a private copy of this folder now; without one it stays read-only."""
        os.makedirs(self._root + path, exist_ok=True)
        if not self._has_mounts(path):
            try:
                self._overlay(path)
                return True
            except OSError:
                pass  # not over this file system: the next way
        if self._remade >= _MOST_REMADE:
            return False
        made = self._new_folder("made")
        os.chmod(made, _mode_for_us(path))
        mount(made, self._root + path, "", BIND)
        self.made.append(Copied(made, path))
        self.points.add(path)
        self._remake(path, made, writable=True)
        return True

    def _has_mounts(self, path: str) -> bool:
        return any(is_below(point, path) for point in self._kinds)

    def _overlay(self, path: str) -> None:
        upper, work = self._new_folder("upper"), self._new_folder("work")
        self._fill(path, upper)
        os.chmod(upper, _mode_for_us(path))
        options = f"lowerdir={_escaped(path)},upperdir={upper},workdir={work},userxattr"
        mount("overlay", self._root + path, "overlay", 0, options)
        self.made.append(Copied(upper, path))
        self.points.add(path)

    def _new_folder(self, name: str) -> str:
        self._number += 1
        path = os.path.join(self._base, f"{name}{self._number}")
        os.mkdir(path)
        return path

    # -- What the kernel cannot copy up ------------------------------------------------------------

    def _fill(self, path: str, upper: str) -> None:
        """Folders and small files of other owners and groups that the user may write to."""
        hot = [folder for folder in self._hot if is_below(folder, path)]
        level = [*hot, path]
        for folder in hot:
            self._put_folder(path, folder, upper)
        started = time.monotonic()
        while level:
            following = []
            for folder in level:
                own = not _is_foreign(os.stat(folder))
                for entry in _entries(folder):
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if own and not is_folder:
                        continue  # a file in a folder of one's own nearly always is, too
                    if _foreign(entry) and os.access(entry.path, os.W_OK):
                        if is_folder:
                            self._put_folder(path, entry.path, upper)
                        else:
                            self._put_folder(path, folder, upper)
                            self._copy(entry, upper + entry.path[len(path) :])
                    if is_folder and entry.name not in _NEVER_WRITTEN:
                        following.append(entry.path)
                if time.monotonic() - started > self._seconds:
                    self._seconds = 0.0
                    return
            level = following
        self._seconds -= time.monotonic() - started

    def _put_folder(self, path: str, folder: str, upper: str) -> None:
        """This folder and all between it and `path` in the upper layer, as writable as they are."""
        for above in [*reversed(_between(folder, path)), folder]:
            target = upper + above[len(path) :]
            if not os.path.isdir(target):
                os.mkdir(target)
                os.chmod(target, _mode_for_us(above))

    def _copy(self, entry: os.DirEntry[str], target: str) -> bool:
        """Whether a small file was copied."""
        about = entry.stat(follow_symlinks=False)
        total = self._copied_bytes + about.st_size
        small = about.st_size <= _SMALL_BYTES and total <= self._most_copied
        if not small or not stat.S_ISREG(about.st_mode):
            return False
        try:
            shutil.copy2(entry.path, target, follow_symlinks=False)
        except OSError:
            return False  # not ours to read
        self._copied_bytes = total
        self._note(target)
        return True

    def _note(self, path: str) -> None:
        self.put[path] = os.lstat(path).st_mtime_ns

    # -- Folders in which something is mounted -----------------------------------------------------

    def _remake(self, path: str, made: str, *, writable: bool = False) -> None:
        """All that is in a folder, in a folder in memory."""
        self._remade += 1
        uid, automounted = os.geteuid(), self._kinds.get(path) == "autofs"
        found = [entry for entry in _entries(path) if entry.path not in self._left_out]
        if automounted:  # to look at others would mount them
            found = [entry for entry in found if entry.path in self._kinds]
        entries = sorted(found, key=lambda entry: (_owner(entry) != uid, entry.name))
        for entry in entries[:_MOST_ENTRIES]:
            try:
                self._entry(entry, os.path.join(made, entry.name), writable=writable)
            except OSError:
                continue  # removed by somebody in between, or not ours to look at

    def _entry(self, entry: os.DirEntry[str], made: str, *, writable: bool) -> None:
        path = entry.path
        if entry.is_symlink():
            os.symlink(os.readlink(path), made)
            self._note(made)
        elif entry.is_dir():
            os.mkdir(made)
            kind = self._kinds.get(path)
            if kind in KERNEL or (kind == "autofs" and not self._has_mounts(path)):
                return  # to look at the latter would mount it
            os.chmod(made, _mode_for_us(path))
            # A folder of the user's own may lie in one that is not: the working directory does, at times.
            wanted = self._is_hot(path) or self._has_mounts(path) or os.access(path, os.W_OK | os.X_OK)
            if not (writable and wanted and kind != "autofs" and self.cover(path)):
                self._show(path, self._root + path)
        elif entry.is_file() and not self._copy(entry, made):
            with open(made, "wb"):
                self._note(made)
            mount(path, self._root + path, "", BIND)
            make_read_only(self._root + path)

    def _is_hot(self, path: str) -> bool:
        """Whether it is, holds, or lies in a folder that the command names."""
        return any(path == one or is_below(one, path) or is_below(path, one) for one in self._hot)

    def _show(self, path: str, target: str) -> None:
        """As it is, but with inodes of its own, read-only; empty where that cannot be."""
        if not self._has_mounts(path):
            try:
                options = f"lowerdir={_escaped(path)}:{self._empty},userxattr"
                mount("overlay", target, "overlay", RDONLY, options)
                return
            except OSError:
                if not self._is_hot(path):
                    return
        if self._remade < _MOST_REMADE:
            self._remake(path, target)

    # -- Afterwards --------------------------------------------------------------------------------

    def changed(self, base: int, most: int) -> List[str]:
        """Paths that the command wrote or removed in its copies; `base` is a handle of the base."""
        found: List[str] = []
        for folder, shown in self.made:
            within = os.path.relpath(folder, self._base)
            for above, _, names, handle in os.fwalk(within, dir_fd=base):
                for name in names:
                    before = self.put.get(os.path.join(self._base, above, name))
                    if before == os.stat(name, dir_fd=handle, follow_symlinks=False).st_mtime_ns:
                        continue
                    below = os.path.relpath(os.path.join(above, name), within)
                    found.append(os.path.join(shown, below))
                    if len(found) >= most:
                        return sorted(found)
        return sorted(found)


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:
        return  # not ours to look into


def _owner(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:
        return -1


def _foreign(entry: os.DirEntry[str]) -> bool:
    try:
        return _is_foreign(entry.stat(follow_symlinks=False))
    except OSError:
        return False


def _is_foreign(about: os.stat_result) -> bool:
    """Whether its owner or group has no number in the user namespace."""
    return about.st_uid != os.geteuid() or about.st_gid != os.getegid()


def _mode_for_us(path: str) -> int:
    """A copy is the user's own; it is as writable for them as the folder itself."""
    mode = os.stat(path).st_mode & 0o7777
    return mode | 0o700 if os.access(path, os.W_OK) else mode & 0o7555


def _between(path: str, folder: str) -> List[str]:
    """The folders above `path` and below `folder`, the nearest first."""
    found = []
    above = os.path.dirname(path)
    while is_below(above, folder):
        found.append(above)
        above = os.path.dirname(above)
    return found
