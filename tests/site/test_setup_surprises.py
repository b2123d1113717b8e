"""Sites of which setup must say what it does: MIG, shards of their own, cloud nodes, no controller."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest

from slurm_gpumem.cli.gpumem import main
from slurm_gpumem.errors import UsageError
from slurm_gpumem.site.setup.hook_files import hook_files
from slurm_gpumem.site.setup.setup import SetupOptions, summary_lines
from slurm_gpumem.site.snapshot import Snapshot, with_hidden_nodes
from tests.support.site_files import GPUS, HEAD, SLURM_ROOT, proposed, snapshot_of, tried

pytestmark = pytest.mark.slurm
SHARED = HEAD.replace("GresTypes=gpu", "GresTypes=gpu,shard")


def passes(proposal: Any, now: Snapshot) -> bool:
    verdict = tried(proposal, now)
    assert (verdict.broken, verdict.not_tried) == ((), "")
    return True


def options(**fields: Any) -> SetupOptions:
    return SetupOptions(slurm_root=SLURM_ROOT, **fields)


def divided(shards: str, **policy: Any) -> Snapshot:
    conf = (
        f"{SHARED}NodeName=n1 CPUs=16 RealMemory=64000 Gres=gpu:a100:4,{shards}\n"
        "PartitionName=gpu Nodes=ALL Default=YES\n"
    )
    kind = " Type=a100" if "a100" in shards else ""
    gres = f"{GPUS}Name=shard{kind} Count={shards.split(':')[-1]}\n"
    return replace(snapshot_of({"slurm.conf": conf, "gres.conf": gres}, ["n1"]), policy=policy)


def test_shards_that_the_site_has_keep_their_size_and_it_is_said() -> None:
    now = divided("shard:8")
    proposal = proposed(now)
    assert "n1: 4 x a100, each 2 shards of 19968 MiB (1024 MiB kept back)" in summary_lines(proposal.plan)
    assert "shard_mib = 19968\n" in proposal.files["gpumem.toml"]
    assert "shares = 2, memory_mib = 39936" in proposal.files["gpumem_site.lua"]
    (note,) = [note for note in proposal.notes if "They stay" in note]
    assert "2 shards on each GPU, so a shard is 19968 MiB" in note
    assert "--shard 1G proposes 39 of 1024 MiB" in note
    assert passes(proposal, now)


def test_a_size_that_is_asked_for_divides_the_gpus_again_and_says_what_changes() -> None:
    now = divided("shard:8")
    proposal = proposed(now, options(shard_mib=1024))
    assert "Gres=gpu:a100:4,shard:a100:156" in proposal.files["slurm.conf"]
    (note,) = [note for note in proposal.notes if "become" in note]
    assert note.startswith("n1: 8 shards become 156 of 1024 MiB: a job that asks for --gres=shard:1 gets")


@pytest.mark.parametrize(("shards", "after"), [(3, "156 of 1024"), (7, "4 of 39936")])
def test_shards_that_do_not_divide_by_the_gpus_do_not_change_without_a_word(shards: int, after: str) -> None:
    (note,) = [note for note in proposed(divided(f"shard:{shards}")).notes if "become" in note]
    assert note.startswith(f"n1: {shards} shards become {after} MiB: ")


def test_a_second_run_keeps_size_mode_and_what_else_gpumem_toml_says() -> None:
    own = '# ours\n[sharing]\nmode = "on"  # since May\nshard_mib = 2048\n\n[node]\nmps = "off"\n'
    now = divided("shard:a100:76", mode="on", shard_mib=2048)
    now = replace(now, files={**now.files, "gpumem.toml": own})
    proposal = proposed(now)
    assert "n1: 4 x a100, each 19 shards of 2048 MiB (2048 MiB kept back)" in summary_lines(proposal.plan)
    assert proposal.files["gpumem.toml"].startswith(own.replace("[sharing]\n", '[sharing]\ngres = "shard"\n'))
    assert "mode" not in proposal.files["gpumem_site.lua"].replace("job_submit", "")
    assert [note for note in proposal.notes if "shards" in note] == []


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (("GresTypes=gpu\n", "GresTypes=gpu,nic\n"), "slurm.conf has GresTypes=gpu,nic"),
        (("gpu:a100:4", "gpu:a100:8"), "slurm.conf has n1 with Gres=gpu:a100:8"),
    ],
)
def test_an_edit_that_slurmctld_has_not_read_is_not_undone(edit: Tuple[str, str], said: str) -> None:
    conf = f"{HEAD}NodeName=n1 CPUs=16 RealMemory=64000 Gres=gpu:a100:4\nPartitionName=gpu Nodes=ALL\n"
    now = snapshot_of({"slurm.conf": conf, "gres.conf": GPUS}, ["n1"])
    edited = replace(now, files={**now.files, "slurm.conf": conf.replace(*edit)})
    with pytest.raises(UsageError, match=said):
        proposed(edited)


CLOUD = "NodeName=cloud[1-64] Sockets=2 CoresPerSocket=8 RealMemory=64000 Gres=gpu:a100:4 State={}\n"


@pytest.mark.parametrize(("state", "note"), [("CLOUD", "State=CLOUD"), ("FUTURE", "(State=FUTURE)")])
def test_nodes_that_slurm_does_not_show_get_shares_too_and_are_named(state: str, note: str) -> None:
    conf = (
        f"{HEAD}NodeName=n1 CPUs=16 RealMemory=64000 Gres=gpu:a100:4\n{CLOUD.format(state)}"
        "PartitionName=gpu Nodes=n1,cloud[1-64] Default=YES\n"
    )
    # Only n1 is started: a controller shows no more of such a site.
    now = with_hidden_nodes(snapshot_of({"slurm.conf": conf, "gres.conf": GPUS}, ["n1"]))
    proposal = proposed(now)
    assert f"Gres=gpu:a100:4,shard:a100:156 State={state}\n" in proposal.files["slurm.conf"]
    (found,) = [said for said in proposal.notes if said.startswith("cloud[1-64]: ")]
    assert note in found
    assert passes(proposal, now)


def written(folder: Path) -> Dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def offline(tmp_path: Path, capsys: Any, *more: str) -> List[str]:
    output = tmp_path / "out"
    assert main(["setup", *more, "--gpu", "n[1-2]=a100:4:40G", "--output", str(output)]) == 0
    assert "not whole files" in capsys.readouterr().err
    return sorted(written(output))


SITE_FILES = ("slurm.conf", "gres.conf", "job_submit.lua", "cli_filter.lua", "gpumem.toml")


def test_without_a_controller_no_file_has_the_name_of_the_sites_own(tmp_path: Path, capsys: Any) -> None:
    names = offline(tmp_path, capsys, "--offline")
    assert not set(SITE_FILES) & set(names)
    assert {f"{name}.part" for name in SITE_FILES} <= set(names)
    for name in SITE_FILES:
        first = (tmp_path / "out" / f"{name}.part").read_text().splitlines()[0]
        assert first.lstrip("-# ").startswith(f"Not a whole {name}")
    # The documented step: a copy of everything over the site's folder leaves its files alone.
    site = tmp_path / "etc"
    site.mkdir()
    (site / "slurm.conf").write_text("ClusterName=big\n")
    for path in (tmp_path / "out").iterdir():
        if path.is_file():
            (site / path.name).write_text(path.read_text())
    assert (site / "slurm.conf").read_text() == "ClusterName=big\n"


def test_hooks_conf_that_may_not_be_read_is_not_written_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path, *args: Any, **kinds: Any) -> str:
        if path.name == "hooks.conf":
            raise PermissionError(13, "Permission denied", str(path))
        return path.read_bytes().decode()

    assert "hooks.conf" in hook_files({})
    monkeypatch.setattr(Path, "read_text", closed)
    assert "hooks.conf" not in hook_files({})


@pytest.mark.parametrize(
    ("files", "plugins", "parts"),
    [
        ({}, None, set(SITE_FILES)),
        # In use, and not here: it is on the controller.
        ({"slurm.conf": ""}, "lua", {"job_submit.lua"}),
    ],
)
def test_a_file_is_whole_only_where_the_original_was_read(
    files: Dict[str, str], plugins: Optional[str], parts: Any
) -> None:
    now = snapshot_of(
        {
            "slurm.conf": f"{HEAD}NodeName=n1 CPUs=16 RealMemory=64000 Gres=gpu:a100:4\n"
            "PartitionName=gpu Nodes=n1\n",
            "gres.conf": GPUS,
        },
        ["n1"],
    )
    texts = {**files, **({"slurm.conf": now.files["slurm.conf"]} if files else {})}
    config = {**now.config, **({"JobSubmitPlugins": plugins} if plugins else {})}
    assert proposed(replace(now, files=texts, config=config)).parts == parts
