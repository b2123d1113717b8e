# Sourced by task_prolog.sh, as the user, where the site has job_reports: the job's Pythons load sitecustomize.py of this folder
# ($hook) and report into a folder of the user's own ($reports). Somebody else's folder of that name, or a link, is left
# alone: then nothing is reported.
# shellcheck shell=sh disable=SC2154
(umask 077 && mkdir "$reports") 2>/dev/null
if [ -d "$reports" ] && [ ! -L "$reports" ] && [ -O "$reports" ]; then
    echo "export GPUMEM_REPORT_DIR=$reports"
    case ":$PYTHONPATH:" in
    *":$hook:"*) ;;
    *) echo "export PYTHONPATH=$hook${PYTHONPATH:+:$PYTHONPATH}" ;;
    esac
fi
