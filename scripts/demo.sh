#!/usr/bin/env bash
# The quickstart from nothing: makes the tiny model, trains it on two tasks, checks that it learned.
set -euo pipefail
bin=$1 seed=$2
model=models/tiny-$seed
run=runs/quickstart-$seed

if [[ ! -d $model ]]; then
    echo "making the tiny model and its warm start (bad play only) in $model"
    "$bin/rollart-hpc" warm-start "$model" --seed "$seed"
fi
number=1
while [[ -e $run ]]; do
    number=$((number + 1))
    run=runs/quickstart-$seed-$number
done
"$bin/rollart-hpc" run examples/quickstart.toml \
    --set model.path="$model" --set run.seed="$seed" --set run.directory="$run"
"$bin/rollart-hpc" assess "$run" --success frozen_lake=0.8 --success arithmetic=0.9
