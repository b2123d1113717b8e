"""Change a site's files as proposed, and take that back, in an order in which every submission goes on.

What is to be written, and what was there, is in a journal before the first file changes. So both ways can be
ended between any two steps and started again: each file tells by its content how far they came.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.data import HOOKS_CONF, LUA_FILES
from slurm_gpumem.errors import UsageError
from slurm_gpumem.files import LockTimeoutError, locked, remove, write_all, write_atomic
from slurm_gpumem.site.setup.merge import taken_back

FOLDER = "gpumem.undo"
"""Beside slurm.conf: the journal, and plain copies of the files as they were."""
KEPT = ".undone"
"""Put behind the name of a file that somebody has edited since and that goes out of use."""
_JOURNAL, _LOCK, _COPIES, _DRAFT = "journal.json", "lock", "before", ".{}.gpumem"
_SITE_LUA = ("job_submit.lua", "cli_filter.lua")
_HELPERS = (*LUA_FILES, "gpumem_site.lua", "gpumem_filter.lua", HOOKS_CONF, "gpumem.toml")
_UNDER_WAY_S = 2.0
"""A submission that has read a slurm.conf with the filter may still be about to load its files."""


@dataclass(frozen=True)
class Entry:
    """One file, by its name in the folder of slurm.conf or its whole path."""

    before: Optional[bytes]
    """None: there was none."""
    ours: Optional[bytes]
    edited: bool = False
    """Whether somebody else's edits are in `ours`, of a file that was not there before."""


@dataclass(frozen=True)
class Undone:
    """What came of taking everything back."""

    files: Tuple[str, ...]
    kept: Tuple[str, ...]
    """Edited by others, and out of use: they are there under another name."""
    lost: Tuple[Tuple[str, str], ...]
    """File and line of their edits of our own words, which went; the file's copy has them."""


def in_order(names: Sequence[str]) -> List[str]:
    """What is named comes before what names it: whoever submits half-way finds all that is named."""

    def rank(name: str) -> int:
        order = (_HELPERS, _SITE_LUA, ("gres.conf",))
        known = next((number for number, group in enumerate(order) if name in group), 3)
        return 4 if name == "slurm.conf" else known

    return sorted(names, key=lambda name: (rank(name), name))


def apply_files(folder: Path, wanted: Mapping[str, bytes], seen: Mapping[str, Optional[bytes]]) -> List[str]:
    """Write these files; UsageError, and no change, where one is not as it was seen. The names, in order."""
    with _at_work(folder):
        journal = _read(folder)
        for name, content in wanted.items():
            now, old = _content(folder, name), journal.get(name)
            # Started again, some are written already.
            if now not in (seen[name], content):
                raise UsageError(f"{_path(folder, name)} was changed meanwhile; run gpumem setup again")
            journal[name] = Entry(now, content) if old is None else _again(old, now, content)
        for name, entry in journal.items():
            copy = folder / FOLDER / _COPIES / name.replace("/", "_")
            if entry.before is not None and not copy.exists():
                copy.parent.mkdir(mode=0o700, exist_ok=True)
                write_atomic(copy, entry.before, mode=0o600)
        _write(folder, journal)
        names = in_order(list(wanted))
        for name in names:
            _put(folder, name, wanted[name])
        _have_it_read(folder, names)
        return names


def undo(folder: Path) -> Optional[Undone]:
    """Take back what `apply_files` changed; None where nothing is to be taken back."""
    if not os.path.lexists(folder / FOLDER):
        return None
    with _at_work(folder):
        journal = _read(folder)
        lost: List[Tuple[str, str]] = []
        for name, entry in journal.items():
            now = _content(folder, name)
            back, lines = _back(name, entry, now)
            lost += [(name, line) for line in lines]
            if lines and now is not None:
                _put(folder, name + KEPT, now, like=name)
            if back is not None:
                journal[name] = Entry(back, now)
        _write(folder, journal)
        kept = []
        names = in_order(list(journal))[::-1]
        waits = any(_content(folder, name) != journal[name].before for name in names if name in _SITE_LUA)
        for name in names:
            entry, now = journal[name], _content(folder, name)
            if waits and name in (*_SITE_LUA, *_HELPERS):
                time.sleep(_UNDER_WAY_S)
                waits = False
            if now is None and entry.before is None:
                continue
            if entry.before is None and now is not None and (entry.edited or now != entry.ours):
                _put(folder, name + KEPT, now, like=name)
                kept.append(name)
            _put(folder, name, entry.before)
        _have_it_read(folder, names)
        for name in names:
            for draft in (_draft(folder, name), _draft(folder, name + KEPT)):
                remove(draft)
        # If this is ended half-way, what is left says that nothing is to be done.
        shutil.rmtree(folder / FOLDER)
    return Undone(tuple(names), tuple(kept), tuple(lost))


def _again(old: Entry, now: Optional[bytes], content: bytes) -> Entry:
    """A file that we had changed before: what is others' since belongs to what was there."""
    if now in (old.ours, old.before) or now is None:
        return replace(old, ours=content)
    if old.before is None or old.ours is None:
        return Entry(old.before, content, edited=True)
    text = taken_back(_text(old.before), _text(old.ours), _text(now)).text
    return Entry(text.encode("latin-1"), content)


def _back(name: str, entry: Entry, now: Optional[bytes]) -> Tuple[Optional[bytes], Tuple[str, ...]]:
    """What an edited file becomes, and the edits that are lost with that; None: what the journal says."""
    if now is None or now in (entry.before, entry.ours):
        return None, ()
    if entry.before is not None and entry.ours is not None:
        merged = taken_back(_text(entry.before), _text(entry.ours), _text(now))
        return merged.text.encode("latin-1"), merged.lost
    if entry.before is None and name in _SITE_LUA:
        lines = _text(now).splitlines(keepends=True)
        return "".join(line for line in lines if not line.endswith("-- gpumem\n")).encode("latin-1"), ()
    return None, ()


def _put(folder: Path, name: str, content: Optional[bytes], like: str = "") -> None:
    """Give a file this content in one step, with the rights of `like`, or its own; None: take it away."""
    if _content(folder, name) == content:
        return
    path = _path(folder, name)
    if content is None:
        remove(path)
        if name == HOOKS_CONF and not any(path.parent.iterdir()):
            path.parent.rmdir()
        return
    draft = _draft(folder, name)
    if not path.parent.exists():
        path.parent.mkdir()
        path.parent.chmod(0o755)  # whatever the umask: all who submit read what is there
    remove(draft)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_all(handle, content)
        os.fchmod(handle, 0o644)
        model = _path(folder, like or name)
        if model.exists():
            about = model.stat()
            os.fchown(handle, about.st_uid, about.st_gid)
            shutil.copystat(model, draft)
            os.utime(draft)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(draft, path)


def _have_it_read(folder: Path, names: Sequence[str]) -> None:
    """slurmctld loads job_submit.lua again when that has a newer time, and with it what that loads."""
    if set(names) & set(_HELPERS) and (folder / "job_submit.lua").exists():
        os.utime(folder / "job_submit.lua")


@contextmanager
def _at_work(folder: Path) -> Iterator[None]:
    """One at a time, in a folder of our own."""
    inside = folder / FOLDER
    try:
        inside.mkdir(mode=0o700, exist_ok=True)
        _refuse_others(inside)
        with locked(inside / _LOCK, 0.0):
            yield
    except LockTimeoutError:
        raise UsageError(f"{inside}: another gpumem setup is at work there; wait until it ends") from None
    except OSError as error:
        why = f"{error.filename or inside}: {error.strerror}"
        raise UsageError(f"{why}. Run it as root, and then again: it goes on where it was stopped") from None


def _refuse_others(path: Path) -> None:
    about = path.lstat()
    if about.st_uid not in (0, os.geteuid()):
        raise UsageError(f"{path} belongs to user {about.st_uid}, and root believes what is there; remove it")


def _read(folder: Path) -> Dict[str, Entry]:
    path = folder / FOLDER / _JOURNAL
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes())
        return {name: Entry(_bytes(one[0]), _bytes(one[1]), bool(one[2])) for name, one in found.items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} cannot be read ({error}); {folder / FOLDER / _COPIES} has the files as they were"
        ) from None


def _write(folder: Path, journal: Mapping[str, Entry]) -> None:
    found = {
        name: [None if text is None else _text(text) for text in (one.before, one.ours)] + [one.edited]
        for name, one in journal.items()
    }
    text = json.dumps(found, indent=1)
    write_atomic(folder / FOLDER / _JOURNAL, text, mode=0o600, durable=True)


def _text(content: bytes) -> str:
    # Every byte is a character of its own, so that what comes back is what there was.
    return content.decode("latin-1")


def _bytes(text: Optional[str]) -> Optional[bytes]:
    return None if text is None else text.encode("latin-1")


def _content(folder: Path, name: str) -> Optional[bytes]:
    path = _path(folder, name)
    return path.read_bytes() if path.exists() else None


def _draft(folder: Path, name: str) -> Path:
    path = _path(folder, name)
    return path.with_name(_DRAFT.format(path.name))


def _path(folder: Path, name: str) -> Path:
    """Where the file is; a link stays one, if it is root's."""
    path = folder / name
    if stat.S_ISLNK(path.lstat().st_mode) if os.path.lexists(path) else False:
        _refuse_others(path)
    return Path(os.path.realpath(path))
