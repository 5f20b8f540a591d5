#!/usr/bin/env bash
# The quickstart from nothing: makes the tiny model, trains it on two tasks, checks that it learned. It runs as one
# heterogeneous Slurm job: on the cluster of this machine if there is one, else on a Slurm of this machine alone; where
# that cannot be, it runs as processes here. WHERE=slurm, cluster or local chooses.
set -euo pipefail
bin=$1 seed=$2 where=${3:-}
model=models/tiny-$seed
run=runs/quickstart-$seed
settings=(--set model.path="$model" --set run.seed="$seed")

box=
end_box() {
    "$bin/rollart-hpc" cluster down "$box" >/dev/null
    rm -rf "$box"
}

if [[ -z $where ]]; then
    if command -v sinfo sbatch >/dev/null && timeout 10 sinfo -h >/dev/null 2>&1; then
        where=slurm
    else
        where=cluster
    fi
fi
if [[ $where == cluster ]]; then
    box=$(mktemp -d "${TMPDIR:-/tmp}/rollart-cluster-XXXXXX")
    trap end_box EXIT
    if "$bin/rollart-hpc" cluster up "$box" --no-accounting >"$box.log" 2>&1; then
        rm "$box.log"
        export SLURM_CONF=$box/etc/slurm.conf ROLLART_SITE=$box/site.toml
    else
        cat "$box.log" >&2
        rm "$box.log"
        where=local
    fi
fi
case $where in
    slurm) echo "running as a Slurm job on this cluster" ;;
    cluster) echo "no Slurm here: running as a Slurm job on a cluster of this machine's own, in $box" ;;
    local) echo "running as processes on this machine, without Slurm" ;;
    *) echo "error: WHERE=$where: expected slurm, cluster or local" >&2 && exit 2 ;;
esac

if [[ ! -d $model ]]; then
    echo "making the tiny model and its warm start (bad play only) in $model"
    "$bin/rollart-hpc" warm-start "$model" --seed "$seed"
fi
number=1
while [[ -e $run ]]; do
    number=$((number + 1))
    run=runs/quickstart-$seed-$number
done
settings+=(--set run.directory="$run")
if [[ $where == local ]]; then
    "$bin/rollart-hpc" run examples/quickstart.toml "${settings[@]}"
else
    "$bin/rollart-hpc" submit examples/quickstart.toml "${settings[@]}" --follow
    "$bin/rollart-hpc" status "$run"
fi
"$bin/rollart-hpc" assess "$run" --success frozen_lake=0.8 --success arithmetic=0.9
