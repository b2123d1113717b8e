"""The results of the node's life as Markdown."""

from __future__ import annotations

from typing import Any, Dict, List


def report(results: Dict[str, Any]) -> str:
    """One page; parts that did not run say why."""
    parts = results["parts"]
    lines = ["# The node side on a real GPU", ""]
    lines += ["Made by `tests/gpu/node_life.py`; the numbers are of the run below, in node_life.json.", ""]
    if results.get("stopped"):
        lines += [f"**Stopped:** {results['stopped']}", ""]
    writers = {
        "surroundings": _surroundings,
        "limits": _limits,
        "four jobs": _four,
        "sampler overhead": _overhead,
        "unfenced and replaced": _without_mps,
        "afterwards": _afterwards,
    }
    for name, part in parts.items():
        verdict = {True: "as wanted", False: "**not as wanted**"}.get(part.get("ok"), "")
        lines += [f"## {name[0].upper()}{name[1:]}", "", f"{part.get('seconds')} s. {verdict}".strip(), ""]
        if "skipped" in part or "failed" in part:
            lines += [f"Did not run to its end: {part.get('skipped') or part.get('failed')}", ""]
            continue
        lines += [*writers.get(name, _victims)(part), ""]
    return "\n".join(lines)


def _surroundings(part: Dict[str, Any]) -> List[str]:
    return [
        f"- GPU: {part.get('nvidia_smi', 'stand-in')}",
        f"- Python {part['python']}, torch {part.get('torch', '–')}, "
        f"kernel {part['kernel']}, gpumem {part['gpumem']}",
        f"- users {', '.join(user[0] for user in part['users'])}; GPUs in /proc: {len(part['proc_gpus'])}",
    ]


def _limits(part: Dict[str, Any]) -> List[str]:
    lines = [
        f"Daemons started in {part['daemons_started_s']} s, stopped in {part.get('daemons_stopped_s')} s. "
        f"Default read back: `{part.get('default_read_back')}`, raised: `{part.get('raised_read_back')}`.",
        "",
        "| limit | torch reserved before the error, MiB | process by NVML, MiB | error |",
        "|---|---|---|---|",
    ]
    for form, entry in part["forms"].items():
        error = (entry.get("error") or entry.get("failed") or "").replace("|", "/").replace("\n", " ")
        lines.append(f"| {form} | {_n(entry.get('held_mib'))} | {_n(entry.get('nvml_mib'))} | {error[:80]} |")
    return lines


def _four(part: Dict[str, Any]) -> List[str]:
    lines = [
        "| job | uid | reserved peak | context | sum | sampler's peak | off by | steps/s | loss | error |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, job in part["jobs"].items():
        difference = "–" if job["difference"] is None else f"{job['difference'] * 100:+.2f} %"
        loss = f"{_n(job['first_loss'], 2)} → {_n(job['last_loss'], 3)}"
        lines.append(
            f"| {name} | {job['uid']} | {_n(job['max_reserved_mib'])} | {_n(job['context_mib'])} "
            f"| {_n(job['own_mib'])} "
            f"| {_n(job['sampler_peak_mib'])} | {difference} | {_n(job['steps_per_s'], 1)} "
            f"| {loss} | {job['error'] or ''} |"
        )
    said = [" ".join(text.split()) for text in part.get("gpusbatch", {}).values()]
    lines += ["", "Submitted by gpusbatch, which said:", "```", *said, "```"]
    lines += [
        "",
        "`gpumem node status` meanwhile:",
        "```",
        str(part.get("status_screen", "")).rstrip(),
        "```",
    ]
    return [
        *lines,
        f"MPS processes while they ran: {part['mps_processes']}; left behind: {part['mps_left_behind']}.",
    ]


def _victims(part: Dict[str, Any]) -> List[str]:
    culprit = part["culprit"]
    record = culprit.get("record") or {}
    lines = [
        f"The job itself: {_line(culprit['error']) or 'ended without an error of its own'}; "
        f"held {_n(culprit['held_mib'])} MiB under limit {culprit['limit']}; "
        f"record: exit {record.get('exit_code')}, "
        f"signal {record.get('signal')}, peak {_n(record.get('peak_mib'))} MiB, "
        f"hints {record.get('hints')}, verdict {record.get('verdict')}, events {record.get('events')}.",
        "",
        "| neighbour | lived | died after | error | steps before/later | loss | longest | exit | hints |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, victim in part["victims"].items():
        lines.append(
            f"| {name} | {'yes' if victim['lived'] else '**no**'} | {_n(victim['died_after_s'], 1)} "
            f"| {_line(victim['error'])} "
            f"| {victim['steps_before']}/{victim['steps_later']} "
            f"| {_n(victim['loss_before'], 3)} → {_n(victim['loss_last'], 3)} "
            f"| {_n(victim['longest_step_s'], 3)} s | {victim['exit_code']} "
            f"| {victim['record_hints']} {victim.get('record_verdict') or ''} "
            f"{victim['record_events'] or ''} |"
        )
    lines += ["", f"MPS servers before: {part['servers_before']}; after: {part['servers_after']}."]
    if "next_job" in part:
        lines.append(f"The same user's next job: {part['next_job']}.")
    return lines


def _overhead(part: Dict[str, Any]) -> List[str]:
    return [
        f"Step with the sampler {_n(part['step_ms_with'], 3)} ms, "
        f"without {_n(part['step_ms_without'], 3)} ms: "
        f"{part['overhead'] * 100:+.2f} % (medians {part['median_overhead'] * 100:+.2f} %), "
        f"{part['steps']} steps; the blocks scatter so that ±{part['noise'] * 100:.2f} % says nothing.",
        f"Sampler (source {part['source']}): {part['sampler_cpu_share'] * 100:.2f} % of one core, "
        f"{_n(part['sampler_rss_mib'], 1)} MiB.",
        f"Blocks with: {[round(x, 3) for x in part['block_means_ms_with']]}, "
        f"without: {[round(x, 3) for x in part['block_means_ms_without']]} ms.",
        *([f"NVML, processor ms per call: {part['nvml_ms']}."] if part.get("nvml_ms") else []),
    ]


def _without_mps(part: Dict[str, Any]) -> List[str]:
    return [
        f"Notes of the job without MPS: {part['notes']}.",
        f"{part['daemons_killed']} MPS processes killed; the next job ran in mode {part['replaced_mode']}, "
        f"{part['replaced_steps']} steps, error: {part['replaced_error']}. "
        f"Left behind: {part['mps_left_behind']}.",
    ]


def _afterwards(part: Dict[str, Any]) -> List[str]:
    return [
        f"Node: {part['node']}; sampler ended by itself: {part['sampler_ended_by_itself']}; "
        f"MPS: {part['mps']}; files: {part['files_left']}.",
        "",
        "Kernel:",
        "```",
        *part["kernel"],
        "```",
    ]


def _n(value: Any, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _line(text: Any) -> str:
    return " ".join(str(text or "").replace("|", "/").split())[:140]
