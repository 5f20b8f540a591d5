#!/bin/bash
# Pool cpu
#SBATCH --job-name=pyxis
#SBATCH --output=/dev/null
#SBATCH --open-mode=append
#SBATCH --chdir=/shared/work
#SBATCH --partition=cpu
#SBATCH --account=physics
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=20
#SBATCH --mem=73728M
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR2@120
#SBATCH hetjob
# Pool h800
#SBATCH --chdir=/shared/work
#SBATCH --partition=h800
#SBATCH --account=physics
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=131072M
#SBATCH --gres=gpu:h800:2
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR2@120
#SBATCH hetjob
# Pool h20
#SBATCH --chdir=/shared/work
#SBATCH --partition=h20
#SBATCH --account=physics
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=131072M
#SBATCH --gres=gpu:h20:2
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR2@120

# The output is in slurm-JOBID.out in the run's directory. This script opens it by itself, since Slurm ends a job
# without a word when the directory of --output is missing.
run=/shared/runs/pyxis
mkdir -p "$run" && exec >>"$run/slurm-$SLURM_JOB_ID.out" 2>&1 || exit 2

# Slurm signals this process, which exec makes the leader.
exec /shared/venv/bin/python3 -m rollart_hpc.cli.main lead <<'END_OF_CONFIG'
{
  "run": {
    "name": "pyxis",
    "steps": 10,
    "directory": "/shared/runs/pyxis"
  },
  "model": {
    "path": "/shared/models/qwen3"
  },
  "rollout": {
    "groups_per_step": 4
  },
  "slurm": {
    "account": "physics",
    "time": "08:00:00"
  },
  "pools": {
    "h800": {
      "hardware": "H800",
      "actor_train": 1,
      "actor_gen": 1,
      "slurm": {
        "partition": "h800",
        "account": "physics",
        "time": "08:00:00",
        "gpu_type": "h800",
        "container": {
          "runtime": "pyxis",
          "image": "/shared/images/rollart.sqsh",
          "mounts": [
            "/scratch",
            "/data:/data:ro"
          ],
          "extra": [
            "--no-container-mount-home"
          ]
        }
      }
    },
    "h20": {
      "hardware": "H20",
      "actor_gen": 2,
      "slurm": {
        "partition": "h20",
        "account": "physics",
        "time": "08:00:00",
        "gpu_type": "h20",
        "container": {
          "runtime": "pyxis",
          "image": "/shared/images/rollart.sqsh"
        }
      }
    },
    "cpu": {
      "hardware": "cpu",
      "environment": 1,
      "reward": 1,
      "slurm": {
        "partition": "cpu",
        "account": "physics",
        "time": "08:00:00"
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
