#!/bin/sh
# Slurm's EpilogSlurmctld, as SlurmUser: a job of ours that ran out of GPU memory comes back with more.
# Every job of the cluster ends later by as long as this takes: those that are not ours or did not fail leave at once.
# docs/admin/recovery.md tells all. The exit code means nothing to Slurm.
python=/usr/bin/python3 site_config=/etc/slurm/gpumem.toml recovery_log='' next_epilog_slurmctld=
here=${0%/*}
# shellcheck source=/dev/null
[ -r "$here/hooks.conf" ] && . "$here/hooks.conf"

recover() {
    /usr/bin/timeout -k 2 40 /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        GPUMEM_SITE_CONFIG="$site_config" GPUMEM_RECOVERY_LOG="$recovery_log" SLURM_JOB_ID="$SLURM_JOB_ID" \
        SLURM_ARRAY_JOB_ID="$SLURM_ARRAY_JOB_ID" SLURM_ARRAY_TASK_ID="$SLURM_ARRAY_TASK_ID" \
        /usr/bin/nice -n 5 "$python" -I -m slurm_gpumem.recovery.hook </dev/null >/dev/null 2>&1
}

# Failed, and the task epilog's word on this very run in the comment: else there is nothing to do.
case "$SLURM_JOB_EXIT_CODE2 $SLURM_JOB_COMMENT" in
0:0\ *) ;;
*" gpumem-end/1:run=${SLURM_JOB_RESTART_COUNT:-0},saw=oom"* | \
    *" gpumem-end/1:run=${SLURM_JOB_RESTART_COUNT:-0},saw=neighbour"*)
    # Two at a time: a hundred at once are not to keep the controller from others.
    case $SLURM_JOB_ID in *[02468]) slot=$0 ;; *) slot=$here/hooks.conf ;; esac
    [ -r "$slot" ] || slot=$0
    exec 9<"$slot"
    /usr/bin/flock -w 30 9
    # Killed on the way? Once more: every step begins where the job stands.
    recover || recover
    exec 9<&-
    ;;
esac
[ -n "$next_epilog_slurmctld" ] && exec "$next_epilog_slurmctld"
exit 0
