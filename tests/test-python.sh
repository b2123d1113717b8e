#!/usr/bin/env bash
# Run tests on every Python that is found: test-python.sh 'VERSIONS' 'VERSIONS THAT TORCH SUPPORTS' TORCH PYTEST_OPTIONS...
# Torch is installed for the newest Python that it supports; all others run without it.
set -euo pipefail
versions=$1 torch_versions=$2 torch=$3
shift 3

# A Python of this version on the PATH, else one that pyenv installed.
find_python() {
  local pyenv candidate
  pyenv=$(find "${PYENV_ROOT:-$HOME/.pyenv}/versions" -maxdepth 3 -path "*/$1.*/bin/python$1" 2>/dev/null | sort -V | tail -n 1)
  for candidate in "python$1" "$pyenv"; do
    # A shim of pyenv's is on the PATH for versions that are not switched on, too.
    if [ -n "$candidate" ] && "$candidate" -c '' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
}

missing="" found="" with_torch=""
for version in $versions; do
  if [ -n "$(find_python "$version")" ]; then
    found="$found $version"
    case " $torch_versions " in *" $version "*) with_torch=$version ;; esac
  else
    missing="$missing $version"
  fi
done
[ -n "$found" ] || { echo "test-python: found none of: $versions" >&2; exit 2; }

failed=""
for version in $found; do
  venv=.cache/pythons/$version
  [ -x "$venv/bin/python" ] || "$(find_python "$version")" -m venv "$venv"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -e '.[test]'
  if [ "$version" = "$with_torch" ]; then
    "$venv/bin/python" -m pip install -q --disable-pip-version-check "$torch" numpy
    echo "== Python $version with $torch"
    "$venv/bin/python" -m pytest "$@" || failed="$failed $version"
  else
    echo "== Python $version without torch"
    "$venv/bin/python" -m pytest --without-torch "$@" || failed="$failed $version"
  fi
done
[ -z "$missing" ] || echo "test-python: not found, not tested: Python$missing"
[ -z "$failed" ] || { echo "test-python: failed on Python$failed" >&2; exit 1; }
echo "test-python: passed on Python$found (torch on ${with_torch:-none})"
