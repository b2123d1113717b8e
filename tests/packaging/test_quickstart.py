"""The quick start for administrators, word by word, in clean trees of Debian (make test-packages)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Dict, Iterator, List

import pytest

from tests.packaging.quickstart import Host, blocks, make_host, next_versions, with_gpus
from tests.support.waiting import until

pytestmark = [
    pytest.mark.skipif(not os.environ.get("GPUMEM_TEST_LONG"), reason="long: make test-packages"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it enters other trees"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="needs mmdebstrap"),
]
JOB = """\
#!/bin/sh
#SBATCH --gres=gpu:1 --mem=500 -o /tmp/out
#GPUMEM mem=4G
until [ -e /tmp/go ]; do sleep 0.2; done
"""


@pytest.fixture(params=["bookworm", "trixie"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    yield from make_host(request.param, tmp_path / "root")


def test_a_new_administrator_gets_what_the_page_says_and_goes_back(host: Host) -> None:
    before = host.sums()
    client, observe, try_it, nodes, controller, restart, again, back = blocks()

    host.call(client)
    host.call(observe)
    said = host.submits(try_it)
    assert "gpu:1" in said
    assert "gpumem/1:req=12288" in said
    host.call("scancel -u root")

    host.call(nodes)
    host.call(controller)
    host.restart(restart)
    assert "shard:" in host.submits(again)
    toml = host.root / "etc/slurm/gpumem.toml"
    toml.write_text(with_gpus(toml.read_text()))
    until(lambda: host.call("squeue -h -t R"))
    host.call("scancel -u root")

    # A shared job goes on while another one beside it is cancelled, and while packages come and go.
    (host.root / "tmp" / "job.sh").write_text(JOB)
    first, second = (host.submits("sbatch --parsable /tmp/job.sh").split()[-1] for _ in range(2))
    until(lambda: set(host.call("squeue -h -t R -o %i").split()) == {first, second})
    host.call(f"scancel {second}")
    next_versions(host)
    host.call("apt-get install ./*_999.deb")
    assert "999" in host.call("dpkg-query -W slurm-gpumem-node")
    third = host.submits("sbatch --parsable /tmp/job.sh").split()[-1]
    host.call("apt-get install --allow-downgrades $(ls ./*.deb | grep -v 999)")
    assert "999" not in host.call("dpkg-query -W 'slurm-gpumem-*'")
    host.call("touch /tmp/go")
    until(lambda: not host.call("squeue -h"))
    until(lambda: host.reported()[int(third)] == "COMPLETED")
    states = host.reported()
    assert states[int(first)] == "COMPLETED"
    assert states[int(second)].startswith("CANCELLED")

    toml.write_text(with_gpus(toml.read_text(), there=False))
    for line in back.splitlines():
        # The page: until no job has any.
        host.restart(line) if line.startswith("systemctl") else host.call(line, fails="grep" in line)
    after = host.sums()
    assert _differences(before, after) == []


def _differences(before: Dict[str, str], after: Dict[str, str]) -> List[str]:
    return [
        f"{name}: {before.get(name)} → {after.get(name)}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
