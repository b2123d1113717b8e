from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import check
from tests.docs.desk import ROOT, needs_slurm, run_page, to_run
from tests.docs.pages import Before, File, Screen, Step, comparable, read_page, with_output

PAGE = """\
# A page
<!-- before: printf 'a\\nb\\n' > list -->

```
$ cat list
old

$ echo one \\
  two
one two
```
<!-- file: job.sh -->
```bash
#!/bin/bash
```
<!-- not run: needs a GPU -->
```
$ nvidia-smi
```
<!-- slow -->
<!-- needs: no_such_module -->

```
$ gpusbatch job.sh
```
A comment counts for the next block only.
```
gpumem fit model.py   # no prompt: not a screen
```
"""


def test_a_page_is_read_as_what_is_run_for_it() -> None:
    before, first, job, gpu, slow = read_page(PAGE)
    assert before == Before("printf 'a\\nb\\n' > list")
    assert first == Screen(5, (Step("cat list", ("old", ""), 5), Step("echo one \\\n  two", ("one two",), 9)))
    assert job == File("job.sh", "#!/bin/bash\n")
    assert isinstance(gpu, Screen)
    assert gpu.not_run == "needs a GPU"
    assert isinstance(slow, Screen)
    assert (slow.slow, slow.needs) == (True, ("no_such_module",))


def test_what_a_command_prints_takes_the_place_of_what_the_page_shows() -> None:
    parts = to_run(read_page(PAGE), slow=True)
    assert not needs_slurm(parts), "the only command for it is not run"
    found = run_page(parts)
    assert [output for _, output in found] == [["a", "b", ""], ["one two", ""]]
    new = check.new_text(PAGE, parts)
    assert new == PAGE.replace("old\n", "a\nb\n")
    assert check.new_text(new, to_run(read_page(new), slow=True)) == new


def test_output_is_written_below_its_command() -> None:
    screen = read_page(PAGE)[1]
    assert isinstance(screen, Screen)
    assert with_output(PAGE, [(screen.steps[1], ["1", "2"])]) == PAGE.replace("one two\n", "1\n2\n")


def test_what_differs_from_run_to_run_is_not_compared_and_all_else_is() -> None:
    one = [
        "COMPLETED after 00:00:12, started 2026-11-15T06:09:32",
        "up in 0.2 s",
        "  8.0G ┤▂▂██",
        "13.5G ",
        "",
    ]
    two = [
        "COMPLETED after 00:01:00, started 2027-01-01T00:00:00",
        "up in 1.5 s",
        "  8.0G ┤████",
        "13.5G",
        "",
    ]
    assert comparable(one) == comparable(two)
    assert comparable(one) != comparable([*two[:3], "13.6G"])
    assert comparable(one) != comparable([*two[:2], "  9.0G ┤████", "13.5G"])


def test_a_difference_is_shown_with_exit_code_1_and_written_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```\n$ echo new\nold\n```\n")
    assert check.main([str(page)]) == 1
    shown = capsys.readouterr().out
    assert "-old\n+new\n" in shown
    assert check.main(["--write", str(page)]) == 0
    assert check.main([str(page)]) == 0
    assert page.read_text() == "```\n$ echo new\nnew\n```\n"


def _quick(path: Path) -> bool:
    screens = [part for part in read_page(path.read_text(encoding="utf-8")) if isinstance(part, Screen)]
    return any(not (screen.not_run or screen.slow) for screen in screens) and not needs_slurm(screens)


QUICK = [path for path in check.all_pages() if _quick(path)]


@pytest.mark.parametrize("path", QUICK, ids=lambda path: str(path.relative_to(ROOT)))
def test_screens_that_need_no_cluster_are_up_to_date(path: Path) -> None:
    text, new, _ = check.check(path)
    assert new == text, "make docs-check shows the differences"


def test_nearly_all_screens_for_users_are_run() -> None:
    user = [ROOT / "README.md", *(ROOT / "docs" / "user").glob("*.md")]
    screens = [
        part
        for path in user
        for part in read_page(path.read_text(encoding="utf-8"))
        if isinstance(part, Screen)
    ]
    assert sum(not screen.not_run for screen in screens) >= 0.9 * len(screens)
