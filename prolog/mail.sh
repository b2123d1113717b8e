#!/bin/sh
# Slurm's MailProg, as SlurmUser: the mail at the end of one of our jobs also says what it needed, and why it failed.
# Everything goes on to the site's own program as it came; so it does where ours has nothing to say, or fails.
python=/usr/bin/python3 site_config=/etc/slurm/gpumem.toml next_mail='' lines=''
here=${0%/*}
# shellcheck source=/dev/null
[ -r "$here/hooks.conf" ] && . "$here/hooks.conf"
if [ -z "$next_mail" ]; then
    next_mail=/bin/mail
    [ -x "$next_mail" ] || next_mail=/usr/bin/mail
fi
case "$SLURM_JOB_MAIL_TYPE $SLURM_JOB_COMMENT" in
Ended\ *gpumem/1:* | Failed\ *gpumem/1:*)
    lines=$(/usr/bin/timeout -k 2 20 /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin GPUMEM_SITE_CONFIG="$site_config" \
        SLURM_JOB_ID="$SLURM_JOB_ID" SLURM_JOB_UID="$SLURM_JOB_UID" SLURM_JOB_STATE="$SLURM_JOB_STATE" \
        SLURM_JOB_NODELIST="$SLURM_JOB_NODELIST" SLURM_JOB_RESTART_COUNT="$SLURM_JOB_RESTART_COUNT" \
        SLURM_JOB_COMMENT="$SLURM_JOB_COMMENT" LANG=C.UTF-8 \
        "$python" -I -m slurm_gpumem.report.mail </dev/null 2>/dev/null) || lines=
    ;;
esac
[ -n "$lines" ] || exec "$next_mail" "$@"
{ /bin/cat; printf '%s\n' "$lines"; } | "$next_mail" "$@"
