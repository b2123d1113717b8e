#!/bin/sh
# install.sh [OPTIONS] ROLE...: install on one machine without a package, as docs/admin/install.md says. Run it again to
# upgrade; it writes only what differs.
usage="\
usage: install.sh [options] login|node|controller ...

  login       gpusbatch, gpusrun, gpusalloc, gpumem, their man pages and completion, the filter's files
  node        also the hooks, for GPU nodes
  controller  also the Lua files and EpilogSlurmctld

  --check           change nothing; say what would change; exit code 1 if something would
  --uninstall       remove what this script installed, after gpumem setup --undo
  --wheel FILE      the package (default: the only one in dist/, which make dist builds)
  --prefix DIR      a virtual environment for the code (default /opt/gpumem)
  --slurm DIR       Slurm's configuration (default /etc/slurm)
  --local DIR       where commands and man pages go, in bin/ and share/ (default /usr/local)"
set -eu
umask 022
here=$(cd "$(dirname "$0")/.." && pwd) prefix=/opt/gpumem slurm=/etc/slurm local=/usr/local wheel=''
check=no uninstall=no roles='' changed=0 python=${PYTHON:-python3}
commands='gpusbatch gpusrun gpusalloc gpumem'

fail() { echo "install.sh: $*" >&2; exit 2; }
while [ $# -gt 0 ]; do
    case $1 in
    --check) check=yes ;;
    --uninstall) uninstall=yes ;;
    --wheel | --prefix | --slurm | --local)
        [ $# -gt 1 ] || fail "$1 needs a value"
        case $1 in --wheel) wheel=$2 ;; --prefix) prefix=$2 ;; --slurm) slurm=$2 ;; --local) local=$2 ;; esac
        shift
        ;;
    -h | --help) echo "$usage"; exit 0 ;;
    login | node | controller) roles="$roles $1" ;;
    *) fail "$1 is no option and no role; see --help" ;;
    esac
    shift
done
for folder in "$prefix" "$slurm" "$local"; do
    case $folder in /?*) ;; *) fail "$folder: give an absolute path" ;; esac
done
list=$prefix/installed-files

change() { # change WHAT: count a change and say it; fails where it must not be made
    changed=$((changed + 1))
    if [ $check = yes ]; then echo "would $*"; return 1; fi
    echo "$*"
}
note() { # remember a file outside of $prefix, for --uninstall
    grep -qxF "$1" "$list" 2>/dev/null || echo "$1" >>"$list"
}
put() { # put MODE FILE TARGET
    if ! cmp -s "$2" "$3" && change "write $3"; then
        mkdir -p "$(dirname "$3")"
        install -m "$1" "$2" "$3.new" && mv "$3.new" "$3"
    fi
    if [ $check = no ]; then note "$3"; fi
}
hooks_in_use() { # the hooks that slurm.conf names
    grep -Ehs "^[^#]*$slurm/gpumem/[a-z_]+\.sh" "$slurm/slurm.conf"
}
filter_in_use() { # without cli_filter.lua this host would submit nothing
    grep -Eiqs '^[^#]*CliFilterPlugins=.*lua' "$slurm/slurm.conf"
}

if [ $uninstall = yes ]; then
    [ -e "$list" ] || fail "$list: not there; nothing was installed from here"
    # Slurm drains a node whose Prolog is missing.
    if hooks_in_use >&2; then fail "$slurm/slurm.conf still names the hooks; remove these lines first, then reconfigure Slurm"; fi
    while read -r file; do
        case $file in */cli_filter.lua) if filter_in_use || ! cmp -s "$here/lua/cli_filter.lua" "$file"; then continue; fi ;; esac
        if [ -e "$file" ] || [ -L "$file" ]; then
            if change "remove $file"; then rm -f "$file"; rmdir -p "$(dirname "$file")" 2>/dev/null || true; fi
        fi
    done <"$list"
    if change "remove $prefix"; then rm -rf "$prefix"; fi
    if [ $check = yes ]; then exit 1; fi
    exit 0
fi

[ -n "$roles" ] || fail "which role? login, node or controller; see --help"
if [ -z "$wheel" ]; then
    for wheel in "$here"/dist/slurm_gpumem-*.whl; do :; done
fi
[ -f "$wheel" ] || fail "${wheel:-dist/}: no wheel there; build it with 'make dist', or name one with --wheel"

# The code, in an environment of its own.
digest=$(sha256sum <"$wheel")
if [ "$(cat "$prefix/wheel.sha256" 2>/dev/null)" != "$digest" ] && change "install $(basename "$wheel") in $prefix"; then
    [ -x "$prefix/bin/python3" ] || "$python" -m venv "$prefix"
    "$prefix/bin/python3" -m pip install -q --disable-pip-version-check --force-reinstall "$wheel"
    echo "$digest" >"$prefix/wheel.sha256"
fi
for command in $commands; do
    target=$local/bin/$command
    if [ "$(readlink "$target" 2>/dev/null)" != "$prefix/bin/$command" ]; then
        if [ -e "$target" ] && [ ! -L "$target" ]; then fail "$target is there already and is not a link; remove it first"; fi
        if change "link $target"; then mkdir -p "$local/bin" && ln -sf "$prefix/bin/$command" "$target"; fi
    fi
    if [ $check = no ]; then note "$target"; fi
done
scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT
if [ -x "$prefix/bin/python3" ]; then
    # The same date on every run, or every run would change them.
    (cd / && SOURCE_DATE_EPOCH=$(stat -c %Y "$wheel") "$prefix/bin/python3" -m slurm_gpumem.cli.manual "$scratch/share")
    (cd "$scratch/share" && find man bash-completion -type f) >"$scratch/pages"
    while read -r file; do put 644 "$scratch/share/$file" "$local/share/$file"; done <"$scratch/pages"
fi

hook() { put 755 "$here/prolog/$1" "$slurm/gpumem/$1"; }
end_library() { # the library that CUDA programs load, built on this machine
    source=$slurm/gpumem/gpumem_end.c library=$slurm/gpumem/libgpumem_end.so
    if [ -e "$library" ] && cmp -s "$here/prolog/gpumem_end.c" "$source"; then return; fi
    put 644 "$here/prolog/gpumem_end.c" "$source"
    if ! command -v cc >/dev/null && ! command -v gcc >/dev/null; then
        # It says what is missing.
        [ $check = yes ] || "$slurm/gpumem/build_end.sh" || true
    elif change "build $library" && "$slurm/gpumem/build_end.sh"; then
        note "$library"
    fi
}
# The filter of plain sbatch, in place before slurm.conf names it; a site's own cli_filter.lua stays.
if [ -d "$slurm" ] || [ "$roles" != " login" ]; then
    # The settings are the site's once they are there.
    { cat "$here/prolog/hooks.conf.example"; echo "python=$prefix/bin/python3"; } >"$scratch/hooks.conf"
    if [ ! -e "$slurm/gpumem/hooks.conf" ]; then put 644 "$scratch/hooks.conf" "$slurm/gpumem/hooks.conf"; fi
    put 644 "$here/lua/gpumem_filter.lua" "$slurm/gpumem_filter.lua"
    if [ ! -e "$slurm/cli_filter.lua" ]; then put 644 "$here/lua/cli_filter.lua" "$slurm/cli_filter.lua"; fi
fi
for role in $roles; do
    case $role in
    node)
        for name in prolog epilog end_exports hand_over let_go log_check task_prolog task_epilog build_end; do hook $name.sh; done
        end_library
        hooks_in_use >/dev/null || echo "next: the lines for slurm.conf in docs/admin/node.md"
        ;;
    controller)
        hook epilog_slurmctld.sh
        hook mail.sh
        for file in "$here"/lua/gpumem*.lua; do put 644 "$file" "$slurm/${file##*/}"; done
        echo "next: gpumem setup where slurmctld runs"
        ;;
    esac
done
if [ $changed = 0 ]; then echo "nothing to change"; fi
if [ $check = yes ] && [ $changed -gt 0 ]; then exit 1; fi
