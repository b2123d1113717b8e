#!/bin/sh
# shellcheck disable=SC2154
# Sourced by task_epilog.sh, as the user: whether the end of the job's log has nothing that recovery would have to judge.
# Only words are looked for, more than needed: where one is found, slurm_gpumem.recovery.task_epilog reads the lines. It saves
# starting a Python at the end of every job that ran well.
words='memory|alloc|oom|shm|pinned_host|executable batch|pool size|_status_|cudnn algorithm|engine to execute|algorithm worked'
words="$words|mps|error 8|illegal|launch failure|misaligned|killed|errno 12|heap"

says_nothing() { # says_nothing FILE: like Python, of a file that is no plain one, nothing is read
    [ -f "$1" ] && [ -s "$1" ] || return 0
    # shellcheck disable=SC2016
    /usr/bin/timeout 2 /bin/sh -c '/usr/bin/tail -c 65536 "$0" | /bin/grep -aqiE "$1"' "$1" "$words"
    [ $? -eq 1 ]
}

log_is_clean() {
    says_nothing /proc/self/fd/2 || return 1
    [ "$one_log" = yes ] && return 0
    name=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
    # Slurm's default name is that of stdout and stderr together. Else only Slurm knows where stdout is.
    case $(/bin/readlink /proc/self/fd/2) in */slurm-"${name:-$SLURM_JOB_ID}".out) return 0 ;; esac
    out=$(/usr/bin/timeout 5 /usr/bin/env -u LD_LIBRARY_PATH -u LD_PRELOAD scontrol show job "${name:-$SLURM_JOB_ID}" \
        </dev/null 2>/dev/null | /bin/sed -n 's/^ *StdOut=//p' | /usr/bin/tail -n 1)
    [ -n "$out" ] && says_nothing "$out"
}
