#!/bin/sh
# deb.sh OUT: the Debian packages of these sources, in the folder OUT.
set -eu
out=$(realpath -m "${1:?usage: deb.sh OUT}") here=$(dirname "$0")
source=$out/source
"$here/export.sh" "$source"
cp -a "$source/packaging/debian" "$source/debian"
cd "$source"
# The distribution's own Python, whatever else is installed.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
DEB_BUILD_OPTIONS="nocheck ${DEB_BUILD_OPTIONS:-}" dpkg-buildpackage --build=binary --unsigned-changes >"$out/build.log" 2>&1 || {
    tail -n 30 "$out/build.log" >&2
    exit 1
}
cd "$out" && rm -rf "$source" && ls ./*.deb
