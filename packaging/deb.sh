#!/bin/sh
# deb.sh OUT: the Debian packages of these sources, in the folder OUT.
set -eu
out=$(realpath -m "${1:?usage: deb.sh OUT}") here=$(dirname "$0")
# shellcheck source=packaging/who.sh
. "$here/who.sh"
source=$out/source
"$here/export.sh" "$source"
cp -a "$source/packaging/debian" "$source/debian"
cd "$source"
sed -i -e "s|^Maintainer:.*|Maintainer: $MAINTAINER|" -e "${SITE_URL:+s|^Standards-Version.*|&\nHomepage: $SITE_URL|}" debian/control
printf 'slurm-gpumem (%s) unstable; urgency=medium\n\n  * CHANGELOG.md lists what is new.\n\n -- %s  %s\n' \
    "$version" "$MAINTAINER" "$(LC_ALL=C date -uRd "@$SOURCE_DATE_EPOCH")" >debian/changelog
# The distribution's own Python, whatever else is installed.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
DEB_BUILD_OPTIONS="nocheck ${DEB_BUILD_OPTIONS:-}" dpkg-buildpackage --build=binary --unsigned-changes >"$out/build.log" 2>&1 || {
    tail -n 30 "$out/build.log" >&2
    exit 1
}
cd "$out" && rm -rf "$source" && ls ./*.deb
