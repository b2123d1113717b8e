#!/bin/sh
# Slurm's TaskEpilog, as the user: nothing of ours; it keeps the one place that Slurm has open for the site's own.
next_task_epilog=
here=${0%/*}
# shellcheck source=/dev/null
[ -r "$here/hooks.conf" ] && . "$here/hooks.conf"
[ -n "$next_task_epilog" ] && exec "$next_task_epilog"
exit 0
