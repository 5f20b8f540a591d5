#!/bin/bash
# Pool all
#SBATCH --job-name=single_component
#SBATCH --output=/dev/null
#SBATCH --open-mode=append
#SBATCH --chdir=/shared/work
#SBATCH --partition=h800
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=36
#SBATCH --mem=204800M
#SBATCH --gres=gpu:2
#SBATCH --time=02:00:00
#SBATCH --dependency=singleton
#SBATCH --requeue
#SBATCH --signal=B:USR2@120

# The output is in slurm-JOBID.out in the run's directory. This script opens it by itself, since Slurm ends a job
# without a word when the directory of --output is missing.
run=/shared/runs/single_component
mkdir -p "$run" && exec >>"$run/slurm-$SLURM_JOB_ID.out" 2>&1 || exit 2

# Slurm signals this process, which exec makes the leader.
exec /shared/venv/bin/python3 -m rollart_hpc.cli.main lead <<'END_OF_CONFIG'
{
  "run": {
    "name": "single_component",
    "steps": 10,
    "directory": "/shared/runs/single_component"
  },
  "model": {
    "path": "/shared/models/qwen3"
  },
  "rollout": {
    "groups_per_step": 4
  },
  "pools": {
    "all": {
      "hardware": "H800",
      "actor_train": 1,
      "actor_gen": 1,
      "environment": 1,
      "reward": 1,
      "slurm": {
        "partition": "h800",
        "time": "02:00:00",
        "dependency": "singleton"
      }
    }
  },
  "tasks": {
    "lake": {
      "environment": "envs.lake:Lake",
      "reward": "rewards.lake:score"
    }
  }
}
END_OF_CONFIG
