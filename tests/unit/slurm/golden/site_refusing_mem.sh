#!/bin/bash
# Pool cpu
#SBATCH --job-name=site_refusing_mem
#SBATCH --output=/dev/null
#SBATCH --open-mode=append
#SBATCH --partition=cpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=20
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --signal=B:USR2@120
#SBATCH hetjob
# Pool h800
#SBATCH --partition=h800
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --signal=B:USR2@120
#SBATCH hetjob
# Pool h20
#SBATCH --partition=h20
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --signal=B:USR2@120

# The output is in slurm-JOBID.out in the run's directory. This script opens it by itself, since Slurm ends a job
# without a word when the directory of --output is missing.
run=/shared/runs/site_refusing_mem
mkdir -p "$run" && exec >>"$run/slurm-$SLURM_JOB_ID.out" 2>&1 || exit 2

# Slurm signals this process, which exec makes the leader.
exec /shared/venv/bin/python3 -m rollart_hpc.cli.main lead <<'END_OF_CONFIG'
{
  "run": {
    "name": "site_refusing_mem",
    "steps": 10,
    "directory": "/shared/runs/site_refusing_mem"
  },
  "model": {
    "path": "/shared/models/qwen3"
  },
  "rollout": {
    "groups_per_step": 4
  },
  "slurm": {
    "exclusive": true,
    "gpu_form": "none",
    "skip": [
      "mem",
      "chdir"
    ],
    "resources": {
      "actor_gen": {
        "gpus": 2
      }
    }
  },
  "pools": {
    "h800": {
      "hardware": "H800",
      "actor_train": 1,
      "actor_gen": 1,
      "slurm": {
        "partition": "h800",
        "exclusive": true,
        "gpu_form": "none",
        "skip": [
          "mem",
          "chdir"
        ],
        "resources": {
          "actor_gen": {
            "gpus": 2
          }
        }
      }
    },
    "h20": {
      "hardware": "H20",
      "actor_gen": 2,
      "slurm": {
        "partition": "h20",
        "exclusive": true,
        "gpu_form": "none",
        "skip": [
          "mem",
          "chdir"
        ],
        "resources": {
          "actor_gen": {
            "gpus": 2
          }
        }
      }
    },
    "cpu": {
      "hardware": "cpu",
      "environment": 1,
      "reward": 1,
      "slurm": {
        "partition": "cpu",
        "exclusive": true,
        "gpu_form": "gres",
        "skip": [
          "mem",
          "chdir"
        ],
        "resources": {
          "actor_gen": {
            "gpus": 2
          }
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
