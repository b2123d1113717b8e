from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.errors import ConfigError
from slurm_gpumem.slurm.conf_file import (
    Statement,
    Where,
    apply,
    attributes_of,
    lines_of,
    parse,
    partition_nodes,
    read_from_disk,
    read_tree,
)

TEXT = """\
# NodeName=commented out \\
NodeName=n[1-2] CPUs=4 \\   # a comment behind a backslash
   Gres=gpu:2 \\
   Feature="big fast" Reason=a\\#b
Prolog=/x # the end \\
A=1 B=2
"""


def statements(text: str) -> list[Statement]:
    return list(parse("f", text))


def test_statements_are_what_slurm_reads() -> None:
    node, prolog, two = statements(TEXT)
    assert [(pair.key, pair.value) for pair in node.pairs] == [
        ("NodeName", "n[1-2]"),
        ("CPUs", "4"),
        ("Gres", "gpu:2"),
        ("Feature", "big fast"),
        ("Reason", "a\\#b"),
    ]
    assert (prolog.kind, prolog.value("PROLOG")) == ("prolog", "/x")
    assert [pair.key for pair in two.pairs] == ["A", "B"]


def test_an_edit_keeps_comments_and_line_breaks() -> None:
    node, prolog, two = statements(TEXT)
    edits = [
        *node.set("gres", "gpu:2,shard:8"),
        *node.set("CPUs", "8"),
        *node.set("Weight", "1"),
        *node.without("feature"),
        *two.set("B", "3"),
        prolog.removed(),
    ]
    changed = apply({"f": TEXT}, edits)["f"]
    assert changed == (
        TEXT.replace("gpu:2", "gpu:2,shard:8")
        .replace("CPUs=4", "CPUs=8")
        .replace('Feature="big fast"', "")
        .replace("a\\#b", "a\\#b Weight=1")
        .replace("Prolog=/x # the end \\\n", "")
        .replace("B=2", "B=3")
    )


def test_a_value_may_be_broken_over_lines() -> None:
    (line,) = statements("PartitionName=p Nodes=n1,\\\nn2 MaxTime=1\n")
    assert line.value("nodes") == "n1,n2"
    assert apply({"f": "PartitionName=p Nodes=n1,\\\nn2 MaxTime=1\n"}, line.set("Nodes", "n3"))["f"] == (
        "PartitionName=p Nodes=n3 MaxTime=1\n"
    )


@given(st.text(alphabet='aB=" \\#\n1,', max_size=60))
def test_what_was_set_is_what_is_read(text: str) -> None:
    for statement in statements(text):
        if not statement.pairs:
            continue
        key = statement.pairs[0].key
        changed = apply({"f": text}, statement.set(key, "new"))["f"]
        found = next(s for s in parse("f", changed) if s.start == statement.start)
        assert found.value(key) == "new"
        assert len(statements(changed)) == len(statements(text))


def test_included_files_are_found_and_a_missing_one_is_named(tmp_path: Path) -> None:
    texts = {
        "slurm.conf": f"Include {tmp_path}/a.conf\nInclude /nowhere/b.conf\nZ=1\n",
        "a.conf": "include sub/c.conf\n",
        "sub/c.conf": "include d.conf\n",
        "sub/d.conf": "X=beside\n",
        "d.conf": "X=top\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for beside, expected in ((True, "beside"), (False, "top")):
        where = Where(str(tmp_path), beside)
        found = read_from_disk("slurm.conf", where)
        tree = read_tree("slurm.conf", found, where)
        assert [s.text for s in tree.statements] == [f"X={expected}", "Z=1"]
        assert tree.missing == ("/nowhere/b.conf",)
    with pytest.raises(ConfigError, match="includes itself"):
        read_tree("a", {"a": "include a\n"}, Where())


def test_nodes_inherit_from_the_default_lines_before_them() -> None:
    text = (
        "NodeName=DEFAULT CPUs=4 Gres=gpu:1\nNodeName=n[1-2]\nNodeName=default CPUs=8\n"
        "NodeName=n3 Feature=x,y\nNodeSet=new Feature=x\nNodeSet=old Nodes=n1\nPartitionName=a Nodes=ALL\n"
        "PartitionName=b Nodes=old,new\nPartitionName=c Nodes=n[1-2]\nPartitionName=d\n"
    )
    found = attributes_of(lines_of(statements(text), "nodename"))
    assert {name: (node["cpus"], node["gres"]) for name, node in found.items()} == {
        "n1": ("4", "gpu:1"),
        "n2": ("4", "gpu:1"),
        "n3": ("8", "gpu:1"),
    }
    assert partition_nodes(statements(text)) == {
        "a": ("n1", "n2", "n3"),
        "b": ("n1", "n3"),
        "c": ("n1", "n2"),
        "d": (),
    }
