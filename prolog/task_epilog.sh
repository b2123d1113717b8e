#!/bin/sh
# Slurm's TaskEpilog, as the user: report to EpilogSlurmctld why one of our batch scripts ended (gpumem docs recovery),
# and end the output of a job that asked for it with one line on its memory (gpumem docs monitoring).
python=/usr/bin/python3 run_dir=/run/gpumem site_config=/etc/slurm/gpumem.toml next_task_epilog=
here=${0%/*}
# shellcheck source=/dev/null
[ -r "$here/hooks.conf" ] && . "$here/hooks.conf"

run() {
    # The job's own libraries must not be loaded into this Python.
    /usr/bin/timeout -k 1 20 /usr/bin/env -u LD_LIBRARY_PATH -u LD_PRELOAD PATH=/usr/bin:/bin \
        GPUMEM_RUN_DIR="$run_dir" GPUMEM_SITE_CONFIG="$site_config" \
        "$python" -I -m "$1" </dev/null >/dev/null
}
at_end() {
    run slurm_gpumem.recovery.task
    [ "$end_line" = yes ] && run slurm_gpumem.node.end_line
}

# Slurm kills what this task leaves behind as soon as we are done. A process at an MPS server must not be killed: the
# sampler takes it from there, when it has had its time to save a checkpoint. The time limit is Slurm's own KillWait.
leaves_clients() {
    [ -r "$run_dir/jobs/$SLURM_JOB_ID.clients" ] && while read -r pid task step; do
        [ "$step" = "$PPID" ] && [ ! -e "/proc/$task" ] && [ -e "/proc/$pid" ] && return 0
    done <"$run_dir/jobs/$SLURM_JOB_ID.clients" && return 1
}
waited=0
while [ $waited -lt 1200 ] && leaves_clients; do
    waited=$((waited + 1)) && /bin/sleep 0.1
done

# A job is ours if our prolog found a record; without a prolog, a job with shards may be ours.
task_file=$run_dir/jobs/$SLURM_JOB_ID.task ours=${SLURM_SHARDS_ON_NODE:+yes} end_line=no
if [ -r "$task_file" ]; then
    ours=no
    while read -r key one _; do
        case "$key $one" in
        "record yes") ours=yes ;;
        "end_line yes") ours=yes end_line=yes ;;
        esac
    done <"$task_file"
fi
if [ "$ours" = yes ]; then
    # Only the batch script: its steps write to the same log. slurmstepd's command line shows which step this is.
    case $(tr -d '\0' <"/proc/$PPID/cmdline" 2>/dev/null) in
    *.batch]*) at_end ;;
    *slurmstepd:*) ;;
    *) [ -z "$SLURM_STEP_ID" ] && at_end ;;
    esac
fi
[ -n "$next_task_epilog" ] && exec "$next_task_epilog"
exit 0
