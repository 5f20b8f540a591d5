#!/bin/bash
# Pool cpu
#SBATCH --job-name=apptainer
#SBATCH --output=/dev/null
#SBATCH --open-mode=append
#SBATCH --chdir=/shared/work
#SBATCH --partition=cpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=20
#SBATCH --mem=73728M
#SBATCH --requeue
#SBATCH --signal=B:USR2@120
#SBATCH hetjob
# Pool h800
#SBATCH --chdir=/shared/work
#SBATCH --partition=h800
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=131072M
#SBATCH --gres=gpu:2
#SBATCH --requeue
#SBATCH --signal=B:USR2@120
#SBATCH hetjob
# Pool h20
#SBATCH --chdir=/shared/work
#SBATCH --partition=h20
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=131072M
#SBATCH --gres=gpu:2
#SBATCH --requeue
#SBATCH --signal=B:USR2@120

# The output is in slurm-JOBID.out in the run's directory. This script opens it by itself, since Slurm ends a job
# without a word when the directory of --output is missing.
run=/shared/runs/apptainer
mkdir -p "$run" && exec >>"$run/slurm-$SLURM_JOB_ID.out" 2>&1 || exit 2

module load apptainer
# Slurm signals this process, which exec makes the leader.
exec /shared/venv/bin/python3 -m rollart_hpc.cli.main lead <<'END_OF_CONFIG'
{
  "run": {
    "name": "apptainer",
    "steps": 10,
    "directory": "/shared/runs/apptainer"
  },
  "model": {
    "path": "/shared/models/qwen3"
  },
  "rollout": {
    "groups_per_step": 4
  },
  "slurm": {
    "container": {
      "runtime": "apptainer",
      "image": "/shared/images/rollart.sif",
      "python": "/opt/venv/bin/python"
    },
    "setup": [
      "module load apptainer"
    ]
  },
  "pools": {
    "h800": {
      "hardware": "H800",
      "actor_train": 1,
      "actor_gen": 1,
      "slurm": {
        "partition": "h800",
        "container": {
          "runtime": "apptainer",
          "image": "/shared/images/rollart.sif",
          "python": "/opt/venv/bin/python"
        }
      }
    },
    "h20": {
      "hardware": "H20",
      "actor_gen": 2,
      "slurm": {
        "partition": "h20",
        "container": {
          "runtime": "apptainer",
          "image": "/shared/images/rollart.sif",
          "python": "/opt/venv/bin/python"
        }
      }
    },
    "cpu": {
      "hardware": "cpu",
      "environment": 1,
      "reward": 1,
      "slurm": {
        "partition": "cpu",
        "container": {
          "runtime": "apptainer",
          "image": "/shared/images/rollart.sif",
          "python": "/opt/venv/bin/python"
        }
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
