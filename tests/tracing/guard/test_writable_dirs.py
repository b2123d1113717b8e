"""Which folders get a private copy: the user's own wherever they are, and those that a command names."""

from __future__ import annotations

from dataclasses import replace

from tests.tracing.layouts.layouts import BY_NAME, in_python, in_shell, run_in

LOCAL = replace(BY_NAME["local home"], watched=("/home", "/opt"))
_DEEP = (
    "mkdir -p $D/opt/a/b/c/d/mine $D/opt/near; mount --bind $D/opt /opt; echo kept > /opt/a/b/c/d/mine/kept;"
    "chown -R 54321:54321 /opt/a/b/c/d/mine /opt/near;"
    'echo "echo new > /opt/a/b/c/d/mine/kept && cat /opt/a/b/c/d/mine/kept" > /home/user/work/job.sh'
)


def test_a_folder_that_only_the_scripts_text_names_has_one() -> None:
    found = run_in(LOCAL, ["sh", "job.sh"], _DEEP)
    assert found["output"].strip() == "new", found["errors"]
    assert found["changed"] == []


def test_a_folder_in_a_variable_has_one() -> None:
    shell = 'echo new > "$RESULTS/kept" && cat "$RESULTS/kept"'
    site = replace(LOCAL, environment={"RESULTS": "/opt/a/b/c/d/mine"})
    found = run_in(site, in_shell(shell), _DEEP)
    assert found["output"].strip() == "new", found["errors"]
    assert found["changed"] == []


def test_own_folders_that_nobody_names_are_found_and_those_too_deep_are_read_only() -> None:
    code = (
        "import os\nparts = ['opt', 'near', 'x']\n"
        "open(os.sep + os.sep.join(parts), 'w').write('x')\nprint('near')\n"
        "open(os.sep + os.sep.join(['opt', 'a', 'b', 'c', 'd', 'mine', 'kept']), 'w')"
    )
    found = run_in(LOCAL, in_python(code), _DEEP)
    assert found["output"].strip() == "near", found["errors"]
    assert "Read-only file system" in found["errors"]
    assert found["changed"] == []


def test_a_script_that_names_what_is_closed_to_its_user_has_its_copies() -> None:
    more = "echo ': /proc/1/root /proc/1/cwd/x /root/x; echo new > a' > /home/user/work/job.sh"
    found = run_in(BY_NAME["local home"], ["sh", "job.sh"], more)
    assert found["private"]["files"] == "overlay", found["private"]
    assert found["written"] == ["/home/user/work/a"]


def test_what_was_changed_in_copies_is_listed_and_what_was_put_there_is_not() -> None:
    site = BY_NAME["a volume mounted inside home"]
    found = run_in(site, in_shell("echo x >> $HOME/keep.txt; echo y > $HOME/volume/new; rm log.txt"))
    assert found["written"] == ["/home/user/keep.txt", "/home/user/volume/new", "/home/user/work/log.txt"]
