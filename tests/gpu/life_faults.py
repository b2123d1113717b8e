"""What one job's end does to its neighbours on the GPU."""

from __future__ import annotations

import statistics
import time
from typing import Any, Dict, List, Optional

from life_machine import Machine, until


def mean(values: List[float]) -> Optional[float]:
    """None of nothing."""
    return statistics.fmean(values) if values else None


def neighbours(
    m: Machine,
    pace: float,
    name: str,
    part: str,
    *,
    shards: int,
    after: bool = False,
    extra: Optional[Dict[str, Any]] = None,
) -> Dict[str, Any]:
    """Three jobs on the GPU, two of one user; one of these two goes wrong. Who lives?"""
    victims = [f"{name}-same", f"{name}-other"]
    culprit, stop, go = f"{name}-culprit", m.work / f"{name}.stop", m.work / f"{name}.go"
    for number, victim in enumerate(victims):
        m.submit(victim, number, "train", 12, seconds=50 * pace, go=stop)
    options = {"seconds": 50 * pace, **(extra or {})}
    m.submit(culprit, 0, part, shards, **options, **({} if name == "scancel" else {"go": go}))
    ready = m.trains([*victims, culprit], 20, 45 * pace + 15)
    servers_before = _server_states(m)
    acted = time.time()
    if name == "scancel":
        m.cancel([culprit])
    else:
        go.touch()
    culprit_gone = m.ended([culprit], 25)
    time.sleep(5 * pace)
    servers_after = _server_states(m)
    answer: Dict[str, Any] = {
        "ready": ready,
        "culprit_gone": culprit_gone,
        "servers_before": servers_before,
        "servers_after": servers_after,
        "victims": {},
    }
    if after:
        answer["next_job"] = _next_job(m, name)
    answer["mps_log"] = m.mps_logs()
    stop.touch()
    answer["victims_ended"] = m.ended(victims, 20)
    if not answer["victims_ended"]:
        # A client that hangs in a faulted server does not see the sign.
        m.cancel(victims)
        m.ended(victims, 15)
    time.sleep(1)
    result = m.result(culprit)
    answer["culprit"] = {
        "error": result.get("error"),
        "held_mib": result.get("max_reserved_mib"),
        "nvml_mib": result.get("nvml_mib"),
        "limit": result.get("env", {}).get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
        "record": m.record(culprit),
    }
    for victim in victims:
        steps, result = m.steps(victim), m.result(victim)
        later = [step for step in steps if step[0] > acted + 2]
        answer["victims"][victim] = {
            "lived": result.get("error") is None and len(later) > 5,
            "error": result.get("error"),
            "died_after_s": round(result["died"] - acted, 2) if "died" in result else None,
            "steps_before": len(steps) - len(later),
            "steps_later": len(later),
            "loss_before": mean([s[2] for s in steps if s[0] <= acted][-10:]),
            "loss_last": mean([s[2] for s in steps][-10:]),
            "longest_step_s": max((s[1] for s in steps if s[0] > acted - 1), default=None),
            "record_hints": m.record(victim).get("hints"),
            "record_verdict": m.record(victim).get("verdict"),
            "record_events": m.record(victim).get("events"),
            "exit_code": m.record(victim).get("exit_code"),
            "signal": m.record(victim).get("signal"),
        }
    answer["pids"] = {job: m.result(job).get("pid") for job in (culprit, *victims)}
    answer["mps_left_behind"] = not until(lambda: not m.mps_pids(), 8)
    answer["ok"] = ready and culprit_gone
    return answer


def _next_job(m: Machine, name: str) -> Dict[str, Any]:
    """After a fault: can the same user start another job while the faulted server may still be there?"""
    following = f"{name}-next"
    began = time.time()
    m.submit(following, 0, "train", 6, seconds=3)
    ended = m.ended([following], 30)
    if not ended:
        m.cancel([following])
        m.ended([following], 10)
    steps, result = m.steps(following), m.result(following)
    return {
        "ended": ended,
        "steps": len(steps),
        "error": result.get("error"),
        "seconds": round(time.time() - began, 1),
    }


def _server_states(m: Machine) -> Dict[str, Any]:
    """What each user's MPS servers say of themselves."""
    from slurm_gpumem.node.jobs import RunFolder
    from slurm_gpumem.node.mps.daemons import MpsService

    service = MpsService(RunFolder(m.run_dir), m.mps_control)
    states: Dict[str, Any] = {}
    for daemon in service.daemons():
        key = f"{daemon.uid}"
        if daemon.is_server or key in states:
            continue
        servers = (service.ask(daemon.uuid, daemon.uid, "get_server_list") or "").split()
        states[key] = {
            pid: service.ask(daemon.uuid, daemon.uid, f"get_server_status {pid}") for pid in servers
        }
    return states
