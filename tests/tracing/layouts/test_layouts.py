"""Whatever a traced command does, on every layout of file systems: nothing of the user's changes."""

from __future__ import annotations

import pytest

from tests.tracing.layouts.layouts import LAYOUTS, Layout, in_python, in_shell, run_in

each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=[layout.name for layout in LAYOUTS])

DESTROY = """
import mmap, os, shutil, signal, sqlite3, subprocess
home, here = os.environ["HOME"], os.getcwd()
above = os.path.dirname(here)

def overwrite(path):
    with open(path, "w") as file:
        file.write("gone")

def through_map(path):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[:1] = b"X"

def through_link(path):
    os.symlink(path, here + "/link")
    overwrite(here + "/link")

def by_handle(path):
    handle = os.open(path, os.O_RDONLY)
    overwrite(f"/proc/self/fd/{handle}")

def linked(path):
    os.link(path, os.path.dirname(path) + "/second")

def in_sqlite(path):
    with sqlite3.connect(os.path.dirname(path) + "/new.db") as base:
        base.execute("create table t (x)")

def in_git(path):
    who = ["-c", "user.name=x", "-c", "user.email=x"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=os.path.dirname(path), check=True, capture_output=True)

ways = [
    os.utime, lambda path: os.chmod(path, 0), lambda path: os.setxattr(path, "user.x", b"1"), through_map,
    linked, by_handle, through_link, in_sqlite, in_git, overwrite,
    lambda path: os.truncate(path, 0), lambda path: os.rename(path, path + ".moved"), os.unlink,
    lambda path: shutil.rmtree(os.path.dirname(path)),
]
for folder in dict.fromkeys([here, above, home, home + "/important", home + "/volume"]):
    for way in ways:
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                try:
                    way(path)
                except (OSError, subprocess.CalledProcessError, sqlite3.Error):
                    pass
for folder in (home, "/media", "/srv", "/opt"):
    subprocess.run(["rm", "-rf", "--", folder], capture_output=True)
for number in (int(os.environ["OUTSIDE"]), -1):
    try:
        os.kill(number, signal.SIGTERM)
    except OSError:
        pass
print("came to its end")
"""


@each_layout
def test_nothing_outside_changes_whatever_a_command_destroys(layout: Layout) -> None:
    found = run_in(layout, in_python(DESTROY))
    assert found["changed"] == []
    assert found["outside_lives"]
    if layout.without == "both":
        assert found["private"]["files"] == "none"
        assert found["output"] == ""
    else:
        assert found["output"].strip() == "came to its end", found["errors"]


@each_layout
def test_a_script_that_makes_folders_works_where_a_private_copy_is_possible(layout: Layout) -> None:
    make = (
        "mkdir -p output/checkpoint-1 runs/now && echo x > output/checkpoint-1/model && echo y >> log.txt && "
        "mv output/checkpoint-1 output/last && rm -r output/last && echo z > last.ckpt && echo made; "
        "mkdir -p $HOME/.cache/hub && echo t > $HOME/.cache/hub/token && echo cached; "
        'test -z "$SCRATCH" || (mkdir $SCRATCH/new && echo scratch); test -z "$TMPDIR" || mktemp -d'
    )
    found = run_in(layout, in_shell(make))
    assert found["changed"] == []
    assert ("made" in found["output"].split()) == layout.copies, found["errors"]
    if layout.copies:
        assert found["private"]["files"] == "overlay", found["private"]
        assert "cached" in found["output"].split(), found["errors"]
        assert ("scratch" in found["output"].split()) == ("SCRATCH" in layout.environment), found["errors"]
        assert any(path.endswith("/last.ckpt") for path in found["written"])
