#!/bin/sh
# rpm.sh OUT [PYTHON]: the rpm packages of these sources for a distribution with that Python (default 3.9, EL 9), in the
# folder OUT. Builds on any machine that has rpmbuild.
set -eu
out=$(realpath -m "${1:?usage: rpm.sh OUT [PYTHON]}") python_version=${2:-3.9} here=$(dirname "$0")
# shellcheck source=packaging/who.sh
. "$here/who.sh"
"$here/export.sh" "$out/source/slurm-gpumem-$version"
tar -czf "$out/slurm-gpumem-$version.tar.gz" -C "$out/source" "slurm-gpumem-$version"
# The distribution's own Python, whatever else is installed; rpm does not know what Debian's packages provide.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
rpmbuild -bb --nodeps --define "_topdir $out/work" --define "_sourcedir $out" --define "_rpmdir $out" --define "_build_id_links none" \
    --define "gpumem_version $version" --define "python_version $python_version" \
    --define "gpumem_packager $MAINTAINER" ${SITE_URL:+--define "gpumem_url $SITE_URL"} --define "_buildhost reproducible" \
    --define "use_source_date_epoch_as_buildtime 1" --define "clamp_mtime_to_source_date_epoch 1" "$here/slurm-gpumem.spec" >"$out/build.log" 2>&1 || {
    tail -n 30 "$out/build.log" >&2
    exit 1
}
mv "$out"/noarch/*.rpm "$out" && rm -rf "$out/noarch" "$out/source" "$out/work"
cd "$out" && ls ./*.rpm
