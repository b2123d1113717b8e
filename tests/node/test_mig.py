"""MIG instances on a node: found, named as Slurm counts them, measured each by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest

from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.job_record import MIG, MPS, Measurement, parse_job_record
from slurm_gpumem.formats.live import GpuSample, Live, LiveGpu, LiveJob
from slurm_gpumem.formats.mig_profiles import profile_name
from slurm_gpumem.node.gpus import NodeGpu, gpus_of, pick, standin_uuid
from slurm_gpumem.node.gres_order import listed_order
from slurm_gpumem.node.hook import job_from
from slurm_gpumem.node.nvml import Nvml
from slurm_gpumem.node.sources.base import GoneError, GpuProcess, SourceError
from slurm_gpumem.node.sources.nvml import GpmSource, NvmlSource
from slurm_gpumem.node.status import NodeStatus, render
from slurm_gpumem.units import MIB
from tests.node.conftest import Node
from tests.node.desk import Desk
from tests.node.test_nvml import FakeLibrary

NOT_FOUND, INVALID, NOT_SUPPORTED, TIMEOUT = 6, 2, 3, 10
WHOLE, DIVIDED = "GPU-aa00", "GPU-bb00"
FIRST, SECOND = "MIG-0001", "MIG-0002"
NOBODY = 0xFFFFFFFF


class DividedCard:
    """A driver with a whole GPU and one that is divided; its layout may change at any time."""

    def __init__(self) -> None:
        self.instances: Dict[str, Tuple[int, int, str, int]] = {
            FIRST: (3, 0, "1g.18gb", 16384),
            SECOND: (5, 0, "2g.35gb", 33280),
        }
        """UUID → GPU instance, compute instance, profile, MiB."""
        self.processes: Dict[str, List[Tuple[int, int]]] = {FIRST: [(11, 700)], SECOND: [(12, 9000)]}
        self.xids: List[Tuple[int, int, int]] = []
        """(Xid, GPU instance, compute instance) of the divided GPU."""
        self.asked_whole: List[str] = []
        self._names = {1: WHOLE, 2: DIVIDED}
        self._slots: Dict[int, str] = {}

    def library(self, without: Tuple[str, ...] = ()) -> FakeLibrary:
        functions: Dict[str, Callable[..., int]] = {
            "nvmlInit_v2": lambda: 0,
            "nvmlShutdown": lambda: 0,
            "nvmlDeviceGetCount_v2": lambda count: _put(count, 2),
            "nvmlDeviceGetHandleByIndex_v2": lambda index, handle: _put(handle, index.value + 1),
            "nvmlDeviceGetUUID": lambda handle, text, size: _text(text, self._uuid(handle)),
            "nvmlDeviceGetName": lambda handle, text, size: _text(text, self._name(handle)),
            "nvmlDeviceGetMinorNumber": lambda handle, number: _put(number, handle.value - 1),
            "nvmlDeviceGetMigMode": self._mode,
            "nvmlDeviceGetMaxMigDeviceCount": lambda handle, most: _put(most, 7),
            "nvmlDeviceGetMigDeviceHandleByIndex": self._instance_handle,
            "nvmlDeviceGetGpuInstanceId": lambda handle, number: self._number(handle, number, 0),
            "nvmlDeviceGetComputeInstanceId": lambda handle, number: self._number(handle, number, 1),
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetComputeRunningProcesses_v3": self._listed,
            "nvmlDeviceGetPowerUsage": self._whole_only,
            "nvmlDeviceGetUtilizationRates": self._whole_only,
            "nvmlDeviceGetTotalEnergyConsumption": self._whole_only,
            "nvmlDeviceGetAccountingMode": self._whole_only,
            "nvmlEventSetCreate": lambda events: 0,
            "nvmlDeviceRegisterEvents": lambda *_: 0,
            "nvmlEventSetWait_v2": self._event,
            "nvmlGpmSampleAlloc": lambda sample: _put(sample, 900),
            "nvmlGpmSampleGet": lambda *_: 0,
            "nvmlGpmMigSampleGet": self._gpm_sample,
            "nvmlGpmMetricsGet": self._gpm_metrics,
        }
        return FakeLibrary({name: call for name, call in functions.items() if name not in without})

    def _uuid(self, handle: Any) -> str:
        return self._names.get(handle.value) or self._slots[handle.value]

    def _name(self, handle: Any) -> str:
        uuid = self._uuid(handle)
        return f"NVIDIA H200 MIG {self.instances[uuid][2]}" if uuid in self.instances else "NVIDIA H200"

    def _mode(self, handle: Any, current: Any, pending: Any) -> int:
        if handle.value == 1:
            return NOT_SUPPORTED
        return _put(current, 1)

    def _instance_handle(self, gpu: Any, index: Any, handle: Any) -> int:
        if index.value >= len(self.instances):
            return NOT_FOUND
        slot = 100 + index.value
        self._slots[slot] = list(self.instances)[index.value]
        return _put(handle, slot)

    def _here(self, handle: Any) -> Optional[Tuple[int, int, str, int]]:
        return self.instances.get(self._slots.get(handle.value, ""))

    def _number(self, handle: Any, number: Any, place: int) -> int:
        found = self._here(handle)
        return INVALID if found is None else _put(number, found[place])

    def _memory(self, handle: Any, memory: Any) -> int:
        found = self._here(handle)
        if handle.value >= 100 and found is None:
            return INVALID
        memory._obj.total, memory._obj.used = (found[3] if found else 143_771) * MIB, 50 * MIB
        return 0

    def _listed(self, handle: Any, count: Any, infos: Any) -> int:
        if handle.value >= 100 and self._here(handle) is None:
            return INVALID
        found = self.processes.get(self._uuid(handle), [])
        for place, (pid, mib) in enumerate(found):
            infos[place].pid, infos[place].used = pid, mib * MIB
        return _put(count, len(found))

    def _whole_only(self, handle: Any, *_: Any) -> int:
        self.asked_whole.append(self._uuid(handle))
        return INVALID if handle.value >= 100 else 0

    def _event(self, events: Any, data: Any, timeout: Any) -> int:
        if not self.xids:
            return TIMEOUT
        data._obj.device = 2
        data._obj.data, data._obj.gpu_instance, data._obj.compute = self.xids.pop()
        return 0

    def _gpm_sample(self, gpu: Any, instance: Any, sample: Any) -> int:
        self.gpm_of = (gpu.value, instance.value)
        return 0

    def _gpm_metrics(self, request: Any) -> int:
        for metric in request._obj.metrics[: request._obj.count]:
            metric.code, metric.value = 0, 40.0
        return 0


def _put(pointer: Any, value: int) -> int:
    pointer._obj.value = value
    return 0


def _text(buffer: Any, text: str) -> int:
    buffer.value = text.encode()
    return 0


@pytest.fixture
def card() -> DividedCard:
    return DividedCard()


def test_a_divided_gpu_is_its_instances_and_each_has_its_profile_memory_and_place(card: DividedCard) -> None:
    whole, first, second = gpus_of(Nvml(card.library()))
    assert (whole.number, whole.listed, whole.instance, whole.uuid) == (0, 0, "", WHOLE)
    assert (first.number, first.listed, first.instance, first.parent) == (1, 1, "3/0", DIVIDED)
    assert (second.listed, second.instance, second.memory_mib) == (2, "5/0", 33280)
    assert [profile_name(gpu.name) for gpu in (whole, first, second)] == [None, "1g.18gb", "2g.35gb"]


def test_a_driver_without_mig_functions_has_whole_gpus(card: DividedCard) -> None:
    missing = tuple(name for name in card.library().__dict__ if "Mig" in name)
    nvml = Nvml(card.library(without=missing))
    assert [(gpu.uuid, gpu.place) for gpu in gpus_of(nvml)] == [(WHOLE, None), (DIVIDED, None)]
    with pytest.raises(GoneError):
        NvmlSource(nvml, []).sample(FIRST)


def test_each_instance_has_its_own_processes_and_memory_and_the_drivers_whole_gpu_values_are_not_asked(
    card: DividedCard,
) -> None:
    source = NvmlSource(Nvml(card.library()), [])
    assert source.processes(FIRST) == (GpuProcess(11, 700.0, None),)
    assert source.processes(SECOND) == (GpuProcess(12, 9000.0, None),)
    sample = source.sample(FIRST)
    assert (sample.memory_total_mib, sample.power_w, sample.utilization) == (16384.0, None, None)
    assert source.energy_j(FIRST) is None
    assert source.finished(FIRST) == {}
    assert card.asked_whole == []


def test_activity_is_the_instances_own(card: DividedCard) -> None:
    source = GpmSource(NvmlSource(Nvml(card.library()), []))
    source.sample(SECOND)
    assert source.sample(SECOND).sm_active == 0.4
    assert card.gpm_of == (2, 5)


def test_a_driver_without_counters_of_instances_leaves_their_activity_open(card: DividedCard) -> None:
    source = GpmSource(NvmlSource(Nvml(card.library(without=("nvmlGpmMigSampleGet",))), []))
    source.sample(SECOND)
    assert source.sample(SECOND).sm_active is None


def test_a_removed_instance_is_gone_and_the_others_are_still_measured(card: DividedCard) -> None:
    source = NvmlSource(Nvml(card.library()), [])
    source.processes(FIRST)
    source.processes(SECOND)
    del card.instances[FIRST]
    with pytest.raises(SourceError):
        source.processes(FIRST)
    with pytest.raises(GoneError, match="there no more"):
        source.processes(FIRST)
    assert source.processes(SECOND) == (GpuProcess(12, 9000.0, None),)


def test_an_error_of_one_instance_is_not_its_neighbours_and_one_of_the_gpu_is_everybodys(
    card: DividedCard,
) -> None:
    nvml = Nvml(card.library())
    gpus_of(nvml)
    nvml.watch_xids([WHOLE, DIVIDED])
    card.xids = [(31, 5, 0)]
    assert nvml.xids() == [(SECOND, 31)]
    card.xids = [(79, NOBODY, NOBODY)]
    assert nvml.xids() == [(FIRST, 79), (SECOND, 79)]


GPUS = (
    NodeGpu(0, WHOLE, "NVIDIA H200", place=0),
    NodeGpu(1, FIRST, "NVIDIA H200 MIG 1g.18gb", 16384, 1, DIVIDED, 3, 0),
    NodeGpu(1, SECOND, "NVIDIA H200 MIG 2g.35gb", 33280, 2, DIVIDED, 5, 0),
)


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({"SLURM_JOB_GPUS": "2"}, [SECOND]),
        ({"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0"}, [WHOLE]),
        # What Slurm found by itself is named by its UUID, whatever its number.
        ({"SLURM_JOB_GPUS": "7", "CUDA_VISIBLE_DEVICES": f"MIG-{DIVIDED}/5/0"}, [SECOND]),
        ({"SLURM_JOB_GPUS": "1,2", "CUDA_VISIBLE_DEVICES": f"{FIRST},{SECOND}"}, [FIRST, SECOND]),
        # An instance that is not here: the number is left.
        ({"SLURM_JOB_GPUS": "1", "CUDA_VISIBLE_DEVICES": "MIG-ffff"}, [FIRST]),
        ({"SLURM_JOB_GPUS": "9", "CUDA_VISIBLE_DEVICES": "MIG-ffff"}, []),
    ],
)
def test_a_job_gets_its_instances_by_uuid_or_by_slurms_count(env: Dict[str, str], wanted: List[str]) -> None:
    assert [gpu.uuid for gpu in pick(GPUS, env)] == wanted


MINORS = "config 1\ngpu1/gi3/access 30\ngpu1/gi3/ci0/access 31\ngpu1/gi5/access 48\ngpu1/gi5/ci0/access 49\n"
CAP = "/dev/nvidia-caps/nvidia-cap"


@pytest.mark.parametrize(
    ("gres", "order"),
    [
        ("gpu:h200:1,gpu:1g.18gb:1,gpu:2g.35gb:1", [WHOLE, FIRST, SECOND]),
        ("gpu:2g.35gb:1,gpu:h200:1,gpu:1g.18gb:1,shard:h200:139", [SECOND, WHOLE, FIRST]),
    ],
)
def test_places_are_counted_as_slurm_orders_types_and_lines(
    tmp_path: Path, gres: str, order: List[str]
) -> None:
    (tmp_path / "slurm.conf").write_text(f"NodeName=n[1-2] Gres={gres}\n")
    (tmp_path / "gres.conf").write_text(
        f"NodeName=n1 Name=gpu Type=2g.35gb MultipleFiles=/dev/nvidia1,{CAP}48,{CAP}49\n"
        "NodeName=n2 Name=gpu Type=a100 File=/dev/nvidia[0-7]\n"
        "NodeName=n1 Name=gpu Type=h200 File=/dev/nvidia0\n"
        f"NodeName=n1 Name=gpu Type=1g.18gb MultipleFiles=/dev/nvidia1,{CAP}30,{CAP}31\n"
        "NodeName=n1 Name=shard Type=h200 Count=139 File=/dev/nvidia0\n"
    )
    (tmp_path / "minors").write_text(MINORS)
    env = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    assert listed_order(GPUS, "n1", env, tmp_path / "minors") == order


@pytest.mark.parametrize(
    "text",
    [
        "AutoDetect=nvml\n",
        # An instance that the node does not have (any more).
        f"Name=gpu Type=1g.18gb MultipleFiles=/dev/nvidia1,{CAP}66,{CAP}67\n",
        "Include gres.conf\n",
    ],
)
def test_a_file_that_does_not_say_it_leaves_the_order_open(tmp_path: Path, text: str) -> None:
    (tmp_path / "gres.conf").write_text(text)
    (tmp_path / "minors").write_text(MINORS)
    env = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    assert listed_order(GPUS, "n1", env, tmp_path / "minors") == []


def job_env(claim: str) -> Dict[str, str]:
    return {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000", "SLURM_JOB_COMMENT": claim}


def test_no_mps_daemon_is_started_for_a_job_with_an_instance_of_its_own(node: Node) -> None:
    job = job_from(node.config, job_env("gpumem/1:est=7000,req=8192"), GPUS[1:2])
    assert job is not None
    assert job.mode == MIG
    assert not job.uses_mps
    # A site that divides instances into shards has jobs to limit there.
    shared = job_from(node.config, job_env("gpumem/1:est=7000,req=8192,shards=8"), GPUS[1:2])
    assert shared is not None
    assert shared.mode == MPS


def test_the_memory_of_its_instance_is_a_jobs_limit_and_its_record_names_the_instance(desk: Desk) -> None:
    uuid = standin_uuid("n1", 3, instance=True)
    desk.sampler.gpus[uuid] = NodeGpu(1, uuid, "NVIDIA H200 MIG 1g.18gb", 16384, 3, DIVIDED, 3, 0)
    desk.job(7, mode=MIG, gpus=(uuid,), claim=CommentRecord(estimate_mib=7000, request_mib=8192))
    desk.source.found[uuid] = (GpuProcess(desk.process(7), 15_900.0, None),)
    desk.source.total_mib[uuid] = 16384.0
    desk.live()
    job = desk.live()["7"]
    assert (job["limit_mib"], job["shards"], job["peak_mib"]) == (16384, None, 15_900.0)
    desk.sampler.roster.write_records()
    record = parse_job_record(next(desk.config.spool.glob("7.0.*.json")).read_bytes())
    figures = record.measured.gpu[uuid]
    assert (record.mode, record.gpus) == (MIG, (uuid,))
    assert (figures.name, figures.instance, figures.number) == ("NVIDIA H200 MIG 1g.18gb", "3/0", 1)
    assert figures.memory_mib == 16384.0


def test_a_job_whose_instance_was_removed_says_so_and_keeps_what_was_measured(desk: Desk) -> None:
    uuid = standin_uuid("n1", 3, instance=True)
    desk.job(7, mode=MIG, gpus=(uuid,))
    desk.source.found[uuid] = (GpuProcess(desk.process(7), 900.0, None),)
    desk.live()
    desk.source.gone.add(uuid)
    job = desk.live()["7"]
    assert job["notes"] == [f"MIG instance {uuid} was removed while it ran"]
    assert job["peak_mib"] == 900.0


LIVE = Live(
    "n1",
    1_790_000_000.0,
    1.0,
    "gpm",
    {
        FIRST: LiveGpu(1, "NVIDIA H200 MIG 1g.18gb", "3/0", 0.0, sample=GpuSample(900.0, 16384.0, 0.4)),
        WHOLE: LiveGpu(0, "NVIDIA H200", sample=GpuSample(0.0, 143_771.0)),
    },
    {
        7: LiveJob(
            "ada", MIG, (FIRST,), now_mib={FIRST: 17_000.0}, measured=Measurement(limit_mib=16384, samples=9)
        )
    },
)


def test_the_nodes_status_names_the_instance_and_speaks_of_no_shards() -> None:
    text = "\n".join(render(NodeStatus(LIVE, {}, True, ())))
    assert "gpu1:1g.18gb 3/0 ▕" in text
    assert "of   16.0 GiB  mig" in text
    assert "SHARDS" not in text
    assert "claimed" not in text
    assert text.index("gpu0 ") < text.index("gpu1:1g.18gb")
