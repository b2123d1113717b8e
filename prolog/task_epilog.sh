#!/bin/sh
# Slurm's TaskEpilog, as the user: the line at the end of the output of a job that wants one (docs/admin/monitoring.md).
python=/usr/bin/python3 run_dir=/run/gpumem slurm_bin=/usr/bin next_task_epilog=
here=${0%/*}
# shellcheck source=/dev/null
[ -r "$here/hooks.conf" ] && . "$here/hooks.conf"

end_line=no task_file=$run_dir/jobs/$SLURM_JOB_ID.task
if [ -r "$task_file" ]; then
    while read -r key one _; do
        [ "$key" = end_line ] && end_line=$one
    done <"$task_file"
fi
if [ "$end_line" = yes ]; then
    # Once per job: the batch script's end, not its steps'. The step's keeper says which it is.
    case $(tr -d '\0' <"/proc/$PPID/cmdline" 2>/dev/null) in
    *.batch]*)
        PATH=$slurm_bin:/usr/bin:/bin GPUMEM_RUN_DIR=$run_dir \
            /usr/bin/timeout -k 1 10 "$python" -I -m slurm_gpumem.node.end_line </dev/null >/dev/null
        ;;
    esac
fi
[ -n "$next_task_epilog" ] && exec "$next_task_epilog"
exit 0
