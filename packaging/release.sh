#!/bin/sh
# release.sh OUT: everything that is published of a version, in the folder OUT, built twice from the last commit with the
# same bytes. MAINTAINER, SITE_URL: see who.sh. SIGN_KEY: a key of gpg's that signs SHA256SUMS. Needs what make installs
# for deb, rpm, dist and docs.
set -eu
out=$(realpath -m "${1:?usage: release.sh OUT}") here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=packaging/who.sh
. "$here/who.sh"
if [ -n "$(git status --porcelain)" ]; then
    echo "a release is built from what is committed; commit or remove these first:" >&2
    git status --short >&2
    exit 1
fi
build() ( # build FOLDER
    umask 022
    packaging/deb.sh "$1/parts/deb"
    if command -v rpmbuild >/dev/null; then packaging/rpm.sh "$1/parts/rpm" "${RPM_PYTHON:-3.9}"; fi
    packaging/dist.sh .cache/dist/bin/python "$1/parts/dist" ${SITE_URL:+"$SITE_URL"}
    PYTHONPATH=. packaging/site.sh .cache/docs/bin/python "$1/parts/site/slurm-gpumem-$version-docs"
    packaging/tar.sh "$1/parts/site" "$1/slurm-gpumem-$version-docs.tar.gz"
    for file in "$1"/parts/deb/*.deb "$1"/parts/rpm/*.rpm "$1"/parts/dist/*; do [ ! -f "$file" ] || mv "$file" "$1"; done
    rm -rf "$1/parts"
    PYTHONPATH=. python3 packaging/sbom.py "$1" >"$1/slurm-gpumem-$version.cdx.json.new"
    mv "$1/slurm-gpumem-$version.cdx.json.new" "$1/slurm-gpumem-$version.cdx.json"
    cd "$1" && find . -type f ! -name 'SHA256SUMS*' -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS.new && mv SHA256SUMS.new SHA256SUMS
)
rm -rf "$out" "$out.again"
mkdir -p "$out" "$out.again"
build "$out" >/dev/null && build "$out.again" >/dev/null
diff -r "$out" "$out.again" || { echo "two builds of $(git log -1 --format=%h) differ, so it is no release" >&2; exit 1; }
rm -rf "$out.again"
cat "$out/SHA256SUMS"
command -v rpmbuild >/dev/null || echo "no rpmbuild here: without rpm packages (apt-get install rpm)"
[ -n "${SITE_URL:-}" ] || echo "no SITE_URL: packages and pages name no home page"
if [ -n "${SIGN_KEY:-}" ]; then
    gpg --batch --yes --local-user "$SIGN_KEY" --armor --detach-sign "$out/SHA256SUMS"
else
    echo "not signed: SIGN_KEY=KEY signs SHA256SUMS"
fi
