#!/bin/sh
# shellcheck disable=SC1090,SC1091,SC2034,SC2154
# Slurm's TaskEpilog, as the user: report to EpilogSlurmctld why one of our batch scripts ended (gpumem docs recovery).
python=/usr/bin/python3 run_dir=/run/gpumem site_config=/etc/slurm/gpumem.toml next_task_epilog='' here=${0%/*}
[ -r "$here/hooks.conf" ] && . "$here/hooks.conf"
for part in log_check let_go; do [ -r "$here/$part.sh" ] && . "$here/$part.sh"; done
quietly='import sys; sys.excepthook = lambda *_: None; from slurm_gpumem.recovery.task_epilog import main; sys.exit(main())'
judge() { # The job's own libraries must not be loaded into this Python.
    /usr/bin/timeout -k 5 20 /usr/bin/env -u LD_LIBRARY_PATH -u LD_PRELOAD PATH=/usr/bin:/bin GPUMEM_RUN_DIR="$run_dir" \
        GPUMEM_SITE_CONFIG="$site_config" GPUMEM_SLOT_DIR="$saves" "$python" -I -c "$quietly" </dev/null >/dev/null
}
at_end() {
    saves=${GPUMEM_CHECKPOINTS:-$SLURM_SUBMIT_DIR/gpumem-checkpoints}/$SLURM_JOB_ID
    [ -z "$overran" ] && [ ! -e "$saves/state.json" ] && log_is_clean && return
    # Slurm sends SIGTERM when this requeues the job; the site's own hook has to run to its end, too.
    trap '' TERM
    # Once more, as an upgrade may be replacing our files. A traceback would stand where the log is judged.
    judge || { [ $? -eq 1 ] && /bin/sleep 5 && judge; } || echo "gpumem: how this run ended was not noted" >&2
}
# A job is ours if our prolog found a record; without a prolog, a job with shards may be ours.
task_file=$run_dir/jobs/$SLURM_JOB_ID.task ours=${SLURM_SHARDS_ON_NODE:+yes} one_log=no
if [ -r "$task_file" ]; then
    ours=no
    while read -r key one _; do
        case "$key $one" in
        "record yes") ours=yes ;; "one_log yes") one_log=yes ;;
        esac
    done <"$task_file"
fi
if [ "$ours" = yes ]; then
    # Only the batch script: its steps write to the same log. slurmstepd's command line shows which step this is.
    read -r title <"/proc/$PPID/cmdline"
    case $title in
    *.batch]*) at_end ;;
    *slurmstepd:*) ;;
    *) [ -z "$SLURM_STEP_ID" ] && at_end ;;
    esac
fi
[ -n "$next_task_epilog" ] && exec "$next_task_epilog"
exit 0
