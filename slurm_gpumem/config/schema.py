"""Every table and key of gpumem.toml: what it may be, its default, what it is for.

This is the only list. The reader's checks, "did you mean", the typed values of each table and the
documentation of gpumem.toml all come from it.
"""

from __future__ import annotations

from typing import Dict, List

from slurm_gpumem.config.kinds import (
    ABSOLUTE,
    AT_LEAST_ONE,
    COVERAGE,
    DURATION,
    GROUPS,
    LADDER,
    MEBIBYTES,
    NAMES,
    PART,
    PATH,
    SECONDS,
    SLOWDOWN,
    SWITCH,
    TEXT,
    WORD,
    Key,
    Section,
    choices_of,
    one_of,
    table_of,
)

MODES = ("observe", "opt-in", "known", "on")
"""From the most careful on: of several partitions the first counts."""
SHARED_GRES = ("shard", "mps")
NODE_MPS = ("per-user", "shared", "timeslice", "off")
"""How the jobs on one GPU run: an MPS server for each user, one for all, no MPS, or what the site runs."""
_NODE_MPS = one_of(*NODE_MPS)
_IDLE_AFTER = {"start": "2h", "later": "5h", "interactive": "8h"}
"""What sites that cancel idle jobs give one that never began, one that stopped, one that somebody uses."""
_IDLE_EXCEPT: Dict[str, List[str]] = {"partition": [], "user": [], "qos": []}
_PARTITION_KEYS = (
    Key(
        "mode",
        one_of(*MODES),
        "opt-in",
        '"observe" (estimate and record, change nothing), "opt-in" (jobs that ask), "known" (also jobs whose '
        'script ran before) or "on" (also the first run, where [trace] default or first_run_mib says how)',
    ),
    Key(
        "coverage",
        COVERAGE,
        None,
        "share of jobs that requests are to hold for; unset: 0.98 for summaries of library models, 0.95 "
        "with a custom forward, 0.9 without shapes, 0.99 for traces",
    ),
    Key(
        "max_slowdown",
        SLOWDOWN,
        2.0,
        "how many times as long a step may take while sharing as alone, as predicted (gpumem docs sharing); "
        "100: any, only memory decides",
    ),
)

SHARING = Section(
    "sharing",
    (
        *_PARTITION_KEYS,
        Key("gres", one_of(*SHARED_GRES), "shard", "what GPUs are divided into; one of the two per cluster"),
        Key("shard_mib", AT_LEAST_ONE, 1024, "GPU memory that one shard stands for"),
        Key(
            "min_host_mib",
            AT_LEAST_ONE,
            4096,
            "host memory requested at least, up to a quarter of what belongs to one GPU",
        ),
        Key(
            "first_run_mib",
            AT_LEAST_ONE,
            None,
            "GPU memory for the first run of a script of which nothing is known; unset: its whole GPU",
        ),
        Key(
            "pilot_wait",
            DURATION,
            "1h",
            "how long an array whose script has not run yet waits for what its first task takes, before all "
            "start on whole GPUs",
        ),
        Key(
            "unknown_activity",
            PART,
            None,
            "how busy a job of unknown activity is taken to keep a GPU (memory by hand, no measured run); "
            "unset: its memory alone decides its share",
        ),
    ),
    named=(Section("sharing.partition", _PARTITION_KEYS),),
)

JOB_KEYS = (
    "model", "batch-size", "optimizer", "precision", "gpu", "estimator", "mem", "on-oom", "max-slowdown",
    "exclusive-gpu", "grad-accumulation", "checkpointing", "channels-last", "loss", "input", "input-dtype",
    "torch", "module-loading", "coverage", "strategy", "trace", "trace-or", "trace-tasks",
    "trace-limit", "slot",
)  # fmt: skip
"""What a job says of itself: keys of #GPUMEM lines, GPUMEM_* variables and (mem as --gpu-mem) options."""
JOB_SWITCHES = ("exclusive-gpu", "checkpointing", "channels-last", "trace")
"""Those of them that are yes or no; on a #GPUMEM line the bare word means yes."""

JOB = Section(
    "job",
    # What people or sites want for all jobs; the rest belongs to one job, and stands in its script.
    tuple(
        Key(name, WORD, None, f"default of #GPUMEM {name}= and --{name}")
        for name in ("optimizer", "precision", "gpu", "torch", "on-oom", "trace-or")
    ),
)

TRACE = Section(
    "trace",
    (
        Key(
            "default",
            SWITCH,
            False,
            "gpusbatch traces every job that asks for one GPU and says nothing of its memory",
        ),
        Key(
            "where",
            one_of("login", "job", "off"),
            "login",
            'where gpusbatch --trace runs the script: on the "login" node, in a short CPU-only "job", or not',
        ),
        Key("time_limit_s", SECONDS, 120, "for one trace; a job may ask for less or more (trace-limit)"),
        Key("memory_mib", AT_LEAST_ONE, 16384, "host memory that a traced script may take"),
        Key(
            "at_once",
            AT_LEAST_ONE,
            None,
            "traces that run at once on a login node, others queue; unset: as many as it has free CPUs for",
        ),
        Key("partition", TEXT, None, 'of the trace jobs (where = "job"); unset: the default partition'),
    ),
)

NODE = Section(
    "node",
    (
        Key(
            "mps",
            _NODE_MPS,
            "per-user",
            '"per-user" (an MPS server for each user), "shared" (one for all users; a fault hits them all), '
            '"timeslice" (no MPS, no limits) or "off" (hooks do nothing)',
        ),
        Key(
            "mps_by_partition",
            table_of("a table of modes by partition", _NODE_MPS),
            {},
            'other modes for jobs of a partition: {course = "shared"}',
        ),
        Key(
            "headroom_mib",
            MEBIBYTES,
            0,
            "added to every job's limit; the part of the GPU that is no shard must cover it",
        ),
        Key(
            "driver_limit",
            SWITCH,
            False,
            "also have the driver limit each job's cgroup to its shards (driver 615 or later, cgroup v2; "
            "built from NVIDIA's documentation, not run on hardware)",
        ),
        Key("spool", PATH, "/var/spool/gpumem", "where job records go; may be on a shared file system"),
        Key(
            "source",
            one_of("auto", "dcgm", "gpm", "nvml", "standin"),
            "auto",
            "where the sampler's metrics come from",
        ),
        Key(
            "on_overrun",
            one_of("end", "log", "warn", "cancel"),
            "end",
            'for a job above its shards while sharing: "end" (its GPU processes, as out of memory), "log", '
            '"warn" (a line on its stderr) or "cancel"',
        ),
        Key(
            "on_idle",
            one_of("log", "warn", "cancel"),
            "log",
            'for a job that does nothing on its GPUs: "log", "warn" (mail, and a line on its stderr) or '
            '"cancel" (warned at half the time)',
        ),
        Key(
            "idle_after",
            choices_of("a table of times", DURATION, _IDLE_AFTER),
            _IDLE_AFTER,
            "for how long: since its start, after it has worked, or of a job without a batch script",
        ),
        Key(
            "idle_except",
            choices_of("a table of lists", NAMES, _IDLE_EXCEPT),
            _IDLE_EXCEPT,
            'jobs that it leaves alone: {partition = ["debug"], user = ["anna"], qos = ["teaching"]}',
        ),
        Key("prometheus_file", PATH, None, "the node's metrics, for node_exporter's textfile collector"),
        Key("prometheus_users", SWITCH, True, "name the jobs' users in that file"),
        Key("slurm_bin", PATH, None, "folder of Slurm's commands when it is not on the PATH"),
    ),
)

RECOVERY = Section(
    "recovery",
    (
        Key("enabled", SWITCH, True, "false: recognise and record, requeue nothing"),
        Key(
            "ladder",
            LADDER,
            ["need+25%", "whole-gpu"],
            'what a job asks for next: "need+25%" (a margin on what it needed, or twice its share), "+25%" '
            '(a margin on its share) or "whole-gpu"',
        ),
    ),
)

SLOTS = Section(
    "slots",
    (
        Key(
            "partitions",
            table_of("a table of times by partition", DURATION),
            {},
            'time slots of jobs that do not say, by partition: {gpu = "2h"}; only for what is known to save '
            "checkpoints from an earlier run",
        ),
    ),
)

ACCOUNTING = Section(
    "accounting",
    (
        Key("dir", PATH, None, "where records are gathered, seen by login nodes; unset: node.spool"),
        Key("readers", GROUPS, [], "groups that may read root's index, and so see all jobs"),
    ),
)

SECTIONS = (SHARING, JOB, TRACE, NODE, RECOVERY, SLOTS, ACCOUNTING)

DEVCLUSTER = Section(
    "devcluster",
    (
        Key("ledger", PATH, None, "folder of the stand-in GPUs"),
        Key("mps_control", ABSOLUTE, "/usr/bin/nvidia-cuda-mps-control", "starts and asks MPS daemons"),
        Key("index", PATH, "/var/lib/gpumem", "folder of root's index of records, on a local disk"),
        Key("interval_s", SECONDS, 1, "between two looks at processes and their memory"),
        Key("activity_every_s", SECONDS, 5, "between two readings of activity, power and energy"),
        Key("record_every_s", SECONDS, 30, "between two updates of the job records on disk"),
        Key("slurm_every_s", SECONDS, 60, "between two questions to Slurm about one of the node's jobs"),
        Key("idle_exit_s", SECONDS, 30, "the sampler ends when no shared job has been here for this long"),
        Key("grace_s", SECONDS, 1, "how long a job may be above its shards before something is done"),
        Key("pilot_steady_s", SECONDS, 300, "how long the peak of an array's first task must stand still"),
        Key("least_slot_s", AT_LEAST_ONE, 600, "the shortest slot that a job may ask for"),
    ),
)
"""Constants of the nodes, in one table: a cluster of stand-in GPUs has others, and tests wait less.

No settings of a site: no page and no man page names the table.
"""

OLD_KEYS = {
    "sharing": ("max_cpus", "cpus", "utilization"),
    "sharing.partition": ("utilization",),
    "slurm": ("timeout_s", "cache_s"),
    "text": ("unknown",),
    "job": (
        "batch_size", "estimator", "max_slowdown", "grad_accumulation", "checkpointing", "channels_last",
        "loss", "input_dtype", "module_loading", "coverage", "trace_tasks", "trace_limit",
    ),
    "trace": ("cpus", "at_once_per_user", "unfinished"),
    "node": (
        "mps_by_gpu", "limits", "limit_key", "thread_percentage", "ledger", "interval_s", "activity_every_s",
        "record_every_s", "slurm_every_s", "idle_exit_s", "on_unfenced", "unfenced", "user_tmpfs_mib",
        "grace_s", "prometheus_every_s", "mps_control", "slurm_env",
    ),
    "recovery": ("on_oom",),
    "slots": ("least_s",),
    "accounting": ("index",),
}  # fmt: skip
"""By table, keys that were settings and are constants now."""
INSTEAD = {
    "utilization": 'utilization = "ignore" is now max_slowdown = 100',
    "mps_by_gpu": "mps_by_partition takes the place of mps_by_gpu",
    "slurm_env": "a slurm.conf beside gpumem.toml takes the place of slurm_env",
    "job": "write what a job says of itself into its script (#GPUMEM)",
}
"""By key or table, what takes the place of some of them."""
