#!/bin/sh
# Slurm's EpilogSlurmctld, as SlurmUser: requeue one of our jobs that ran out of GPU memory, or for its next slot.
# This delays the end of every job of the cluster, so it exits at once for jobs that are not ours or did not fail.
# See `gpumem docs recovery`. Slurm ignores the exit code.
python=/usr/bin/python3 site_config=/etc/slurm/gpumem.toml recovery_log='' state_dir='' next_epilog_slurmctld=
here=${0%/*}
# shellcheck source=/dev/null
[ -r "$here/hooks.conf" ] && . "$here/hooks.conf"

# A sign of life for `gpumem doctor`: after `scontrol reconfigure` 22.05 shows this hook and never runs it.
[ -n "$state_dir" ] && { true >"$state_dir/gpumem-epilog-slurmctld"; } 2>/dev/null

recover() {
    /usr/bin/timeout -k 2 40 /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        GPUMEM_SITE_CONFIG="$site_config" GPUMEM_RECOVERY_LOG="$recovery_log" SLURM_JOB_ID="$SLURM_JOB_ID" \
        SLURM_ARRAY_JOB_ID="$SLURM_ARRAY_JOB_ID" SLURM_ARRAY_TASK_ID="$SLURM_ARRAY_TASK_ID" \
        SLURM_JOB_RESTART_COUNT="$restarts" \
        /usr/bin/nice -n 5 "$python" -I -m slurm_gpumem.recovery.hook </dev/null >/dev/null 2>&1
}

# Act only if the comment has the task epilog's verdict on this run, and the job failed or its time slot has ended. Then
# the task epilog has requeued it already, and this is the number of the next run, unless a cancel came first.
restarts=${SLURM_JOB_RESTART_COUNT:-0} code=$SLURM_JOB_EXIT_CODE2
end=" gpumem-end/1:run=$restarts,saw" before=" gpumem-end/1:run=$((restarts - 1)),saw"
case $SLURM_JOB_COMMENT in *"$end=slot"* | *"$before=slot"*) code=slot ;; esac
case "$code $SLURM_JOB_COMMENT" in
0:0\ *) ;;
slot\ * | *"$end=oom"* | *"$end=neighbour"*)
    # Two at a time, so that a hundred at once do not overload the controller. After the timeout a hook leaves its job
    # to the running ones, which look for such jobs when they finish their own. The locks are SlurmUser's own files in
    # SlurmUser's own folder: a file that others may open, others may lock.
    case $SLURM_JOB_ID in *[02468]) slot=0 ;; *) slot=1 ;; esac
    slot=$state_dir/gpumem-recovery.slot$slot turn=0
    if [ -n "$state_dir" ] && [ -O "$state_dir" ] && (umask 077 && true >>"$slot") 2>/dev/null && [ -O "$slot" ]; then
        exec 9>>"$slot"
        /usr/bin/flock -w 50 -E 75 9
        turn=$?
    fi
    # If it was killed, or an upgrade is replacing our files, try once more: every step starts from the job's current state.
    [ $turn -eq 75 ] || recover || { /bin/sleep 5; recover; }
    exec 9>&-
    ;;
esac
[ -n "$next_epilog_slurmctld" ] && exec "$next_epilog_slurmctld"
exit 0
