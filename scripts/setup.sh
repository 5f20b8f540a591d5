#!/usr/bin/env bash
# Makes the virtual environment from the lock file, the system libraries that the wheels need, and, where it may,
# what a Slurm of this machine needs.
set -euo pipefail
venv=$1
python=${PYTHON:-python3.11}

command -v "$python" >/dev/null || python=python3
if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    echo "error: $($python --version) found, Python 3.11 is needed; set PYTHON=/path/to/python3.11" >&2
    exit 2
fi

missing=()
for pair in libibverbs.so.1:libibverbs1 librdmacm.so.1:librdmacm1 libnl-3.so.200:libnl-3-200 \
            libnl-route-3.so.200:libnl-route-3-200 libnuma.so.1:libnuma1 libcurl.so.4:libcurl4; do
    ldconfig -p | grep -q "${pair%%:*}" || missing+=("${pair##*:}")
done
if ((${#missing[@]})); then
    if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    else
        echo "error: system libraries are missing; install them: apt-get install ${missing[*]}" >&2
        exit 2
    fi
fi

slurm=()
for pair in munged:munge slurmctld:slurmctld slurmd:slurmd srun:slurm-client slurmdbd:slurmdbd \
            mariadbd:mariadb-server-core my_print_defaults:mariadb-client-core; do
    PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null || slurm+=("${pair##*:}")
done
compgen -G "/usr/lib/*/slurm*/accounting_storage_mysql.so" >/dev/null || slurm+=(slurm-wlm-mysql-plugin)
if ((${#slurm[@]})); then
    install="apt-get install -y --no-install-recommends ${slurm[*]}"
    if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null && apt-get update -qq && $install -qq >/dev/null; then
        :
    else
        echo "note: \`rollart-hpc cluster\` and the tests with Slurm need: $install; all else works without" >&2
    fi
fi

[[ -x $venv/bin/pip ]] || "$python" -m venv "$venv"
# The lock is complete, so the resolver is not asked: it would pull in parts that do not load on a CPU.
if ! "$venv/bin/pip" install --quiet --no-deps -r requirements-cpu.lock; then
    echo "error: installing the lock failed; where torch's CPU build is what pip does not find, set" \
         "PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels (see README.md) and try again" >&2
    exit 2
fi
"$venv/bin/pip" install --quiet --no-deps --no-build-isolation -e .
# vLLM starts three times as fast with compiled modules.
"$venv/bin/python" -m compileall -q -j 0 "$venv/lib" >/dev/null || true
