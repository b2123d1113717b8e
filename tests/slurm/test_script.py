"""Batch scripts as sbatch reads them, and copies that lack some of their options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.slurm.submit.sbatch_options import sbatch_table
from slurm_gpumem.slurm.submit.script import BatchScript, ScriptError, check_script, read_script

TABLE = sbatch_table()


def script(text: str) -> BatchScript:
    return BatchScript("job.sh", "job.sh", text.encode())


def options(text: str) -> List[Any]:
    return [(option.name, option.value) for option in script(text).options(TABLE)]


def test_sbatch_lines_count_up_to_the_first_command() -> None:
    head = "#!/bin/sh\n\n# words\n#SBATCH -p gpu --mem=4G # why\n  # more\n#SBATCH --gpus=1\n"
    text = head + "echo\n#SBATCH -n 9\n"
    assert options(text) == [("partition", "gpu"), ("mem", "4G"), ("gpus", "1")]


def test_quotes_and_backslashes_are_read_as_sbatch_does() -> None:
    assert options("#!/bin/sh\n#SBATCH --comment='a # b' -J \"it's\"\n") == [
        ("comment", "a # b"),
        ("job-name", "it's"),
    ]
    assert options('#!/bin/sh\n#SBATCH --comment="a \\" b"\n') == [("comment", 'a " b')]
    assert options("#!/bin/sh\n#SBATCH --comment=a#b\n") == [("comment", "a")]


def test_an_option_of_a_plugin_hides_none_that_follow() -> None:
    text = "#!/bin/sh\n#SBATCH --container-image my/image --gpus=1\n#SBATCH --odd -p gpu\n"
    assert [name for name, _ in options(text)] == ["container-image", "gpus", "odd", "partition"]


def test_an_indented_line_is_no_directive() -> None:
    assert options("#!/bin/sh\n #SBATCH --gpus=1\n") == []


def test_a_copy_loses_only_the_unwanted_options() -> None:
    head = "#!/bin/sh\n#SBATCH --gpus=1\n#SBATCH -p gpu -G 1 --comment='a b'\n"
    before = head + "# --gpus=1 stays here\nrun --gpus=1\n"
    after = script(before).without(lambda option: option.name == "gpus", TABLE)
    assert after.text() == (
        "#!/bin/sh\n##SBATCH --gpus=1\n#SBATCH -p gpu '--comment=a b'\n# --gpus=1 stays here\nrun --gpus=1\n"
    )
    assert [(o.name, o.value) for o in after.options(TABLE)] == [("partition", "gpu"), ("comment", "a b")]


def test_an_option_whose_value_stands_on_the_next_line_goes_whole() -> None:
    after = script("#!/bin/sh\n#SBATCH --gpus\n#SBATCH 1 -p gpu\n").without(lambda o: o.name == "gpus", TABLE)
    assert [(o.name, o.value) for o in after.options(TABLE)] == [("partition", "gpu")]


def test_a_script_without_them_is_returned_as_it_is() -> None:
    same = script("#!/bin/sh\n#SBATCH -p gpu\n")
    assert same.without(lambda option: option.name == "gpus", TABLE) is same


@given(
    st.text(alphabet=st.characters(blacklist_categories=("Cs",), blacklist_characters="\n\r\0"), max_size=30)
)
def test_a_rewritten_value_means_what_it_meant(value: str) -> None:
    """Through quoting and reading again, whatever the comment is."""
    from slurm_gpumem.slurm.submit.script import _quote, _split

    assert _split(" " + _quote(f"--comment={value}")) == [f"--comment={value}"]


@given(st.binary(max_size=200))
def test_any_bytes_survive_a_copy(tail: bytes) -> None:
    before = BatchScript("job.sh", "job.sh", b"#!/bin/sh\n#SBATCH --gpus=1\ntrue\n" + tail)
    after = before.without(lambda option: option.name == "gpus", TABLE)
    assert after.data == before.data.replace(b"#SBATCH --gpus=1", b"##SBATCH --gpus=1", 1)


def test_a_missing_script_is_named() -> None:
    with pytest.raises(ScriptError, match=r"nowhere\.sh: the job script cannot be read: No such file"):
        read_script("nowhere.sh")


def test_a_folder_is_no_script(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="Is a directory"):
        read_script(str(tmp_path))


def test_a_script_without_an_interpreter_is_refused_with_the_way_out() -> None:
    with pytest.raises(ScriptError, match="Add #!/bin/bash as its first line"):
        check_script(script("echo hi\n"))


def test_an_empty_script_is_refused() -> None:
    with pytest.raises(ScriptError, match="empty"):
        check_script(script(" \n"))


def test_a_bare_name_is_sought_here_and_then_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\n# on the path\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert "on the path" in read_script("job.sh").text()
    (here / "job.sh").write_text("#!/bin/sh\n# here\n")
    assert "here" in read_script("job.sh").text()


@pytest.mark.slurm
@pytest.mark.parametrize(
    "value", ["plain", "two words", "it's", 'say "hi"', "back\\slash", "$(touch x)", "a#b", "ünïcode"]
)
def test_sbatch_reads_a_rewritten_line_as_we_do(cluster: Any, tmp_path: Path, value: str) -> None:
    from slurm_gpumem.slurm.submit.script import _quote

    path = tmp_path / "job.sh"
    path.write_text(f"#!/bin/sh\n#SBATCH {_quote(f'--comment={value}')}\ntrue\n")
    job = cluster.run(["sbatch", "--parsable", "-H", str(path)], check=True).stdout.strip()
    shown = cluster.run(["squeue", "-h", "-j", job, "-o", "%k"], check=True).stdout.rstrip("\n")
    cluster.run(["scancel", job])
    assert shown == value
