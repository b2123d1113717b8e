#!/bin/sh
# stage.sh DEST: everything that packages hold besides the Python code, in its place below DEST. Run at the top of the
# sources, by debian/rules and by the rpm's spec, so that both put the same files into the same places.
set -eu
dest=${1:?usage: stage.sh DEST} hooks=/usr/libexec/slurm-gpumem here=$(dirname "$0")
put() { # put MODE FOLDER FILE...
    mode=$1 folder=$dest$2; shift 2
    install -d "$folder"
    install -m "$mode" "$@" "$folder"
}

put 755 $hooks prolog/*.sh
put 644 $hooks prolog/gpumem_end.c
# slurm.conf names the links: beside them, in the hooks' own folder, is hooks.conf.
install -d "$dest/etc/slurm/gpumem"
for file in prolog/*.sh; do
    ln -sf "$hooks/${file##*/}" "$dest/etc/slurm/gpumem/${file##*/}"
done
install -m 644 prolog/hooks.conf.example "$dest/etc/slurm/gpumem/hooks.conf"
# job_submit.lua and cli_filter.lua, which belong to the site, load them from their own folder.
put 644 /etc/slurm lua/gpumem*.lua
put 644 /usr/share/slurm-gpumem/examples lua/job_submit.lua lua/cli_filter.lua

put 644 /usr/lib/systemd/system prolog/gpumem-sampler.service "$here"/files/gpumem-collect.service \
    "$here"/files/gpumem-collect.timer
# Here the interpreter is the distribution's.
sed -i -e 's|/opt/gpumem/bin/python3|/usr/bin/python3|' -e '/^# Copy to /d' \
    "$dest/usr/lib/systemd/system/gpumem-sampler.service"
put 644 /usr/lib/tmpfiles.d "$here"/files/slurm-gpumem-node.conf
put 644 /usr/lib/sysusers.d "$here"/files/slurm-gpumem-controller.conf
put 644 /etc/logrotate.d "$here"/files/slurm-gpumem-controller

python3 -m slurm_gpumem.cli.manual "$dest/usr/share"
mv "$dest/usr/share/doc/slurm-gpumem/examples/gpumem.toml" "$dest/usr/share/slurm-gpumem/examples/"
rm -r "$dest/usr/share/doc/slurm-gpumem"
