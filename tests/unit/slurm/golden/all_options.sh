#!/bin/bash
# Pool cpu
#SBATCH --job-name="rollart, \"größer\" #1"
#SBATCH --output=/dev/null
#SBATCH --open-mode=append
#SBATCH --mail-type=END,FAIL
#SBATCH --mail-user=someone@example.org
#SBATCH --chdir=/shared/work
#SBATCH --partition=cpu
#SBATCH --account=physics
#SBATCH --qos=normal
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=68
#SBATCH --mem=212992M
#SBATCH --exclusive=user
#SBATCH --time=1-00:00:00
#SBATCH --licenses=simulator:2
#SBATCH --nodelist=cpu-1
#SBATCH --exclude=cpu-2
#SBATCH --dependency=afterany:1
#SBATCH --comment="two words, a 'quote' and a back\\slash"
#SBATCH --requeue
#SBATCH --signal=B:USR2@300
#SBATCH --nice=10
#SBATCH hetjob
# Pool h800
#SBATCH --chdir=/shared/work
#SBATCH --partition=h800
#SBATCH --account=physics
#SBATCH --qos=normal
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=60
#SBATCH --mem=922112M
#SBATCH --gres=gpu:h800:2
#SBATCH --constraint=nvlink
#SBATCH --exclusive
#SBATCH --time=1-00:00:00
#SBATCH --dependency=afterany:1
#SBATCH --comment="two words, a 'quote' and a back\\slash"
#SBATCH --requeue
#SBATCH --signal=B:USR2@300
#SBATCH --nice=10
#SBATCH hetjob
# Pool h20
#SBATCH --chdir=/shared/work
#SBATCH --partition=h20
#SBATCH --account=physics
#SBATCH --qos=normal
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=131072M
#SBATCH --gpus-per-node=h20:8
#SBATCH --reservation=for_runs
#SBATCH --time=1-00:00:00
#SBATCH --dependency=afterany:1
#SBATCH --comment="two words, a 'quote' and a back\\slash"
#SBATCH --requeue
#SBATCH --signal=B:USR2@300
#SBATCH --nice=10
#SBATCH --wait-all-nodes=1
#SBATCH --gres-flags=enforce-binding

# The output is in slurm-JOBID.out in the run's directory. This script opens it by itself, since Slurm ends a job
# without a word when the directory of --output is missing.
run=/shared/runs/all_options
mkdir -p "$run" && exec >>"$run/slurm-$SLURM_JOB_ID.out" 2>&1 || exit 2

module purge
module load cuda/12.8
export NOTE='a b'
# Slurm signals this process, which exec makes the leader.
exec '/shared/my venv/bin/python3' -m rollart_hpc.cli.main lead <<'END_OF_CONFIG'
{
  "run": {
    "name": "all_options",
    "steps": 10,
    "directory": "/shared/runs/all_options"
  },
  "model": {
    "path": "/shared/models/qwen3"
  },
  "training": {
    "tensor_parallel": 2,
    "data_parallel": 2
  },
  "generation": {
    "tensor_parallel": 4
  },
  "rollout": {
    "groups_per_step": 4
  },
  "slurm": {
    "account": "physics",
    "qos": "normal",
    "time": "1-00:00:00",
    "licenses": "simulator:1",
    "mail_type": "END,FAIL",
    "mail_user": "someone@example.org",
    "dependency": "afterany:1",
    "comment": "two words, a 'quote' and a back\\slash",
    "extra": [
      "--nice=10"
    ],
    "job_name": "rollart, \"gr\u00f6\u00dfer\" #1",
    "leader": "cpu",
    "setup": [
      "module purge",
      "module load cuda/12.8",
      "export NOTE='a b'"
    ],
    "python": "/shared/my venv/bin/python3",
    "interface": "ib0",
    "notice_s": 300
  },
  "pools": {
    "h800": {
      "hardware": "H800",
      "actor_train": 4,
      "slurm": {
        "partition": "h800",
        "account": "physics",
        "qos": "normal",
        "nodes": 2,
        "time": "1-00:00:00",
        "constraint": "nvlink",
        "exclusive": true,
        "gpu_type": "h800",
        "mem_gb": 900.5,
        "cpus_per_node": 60,
        "mail_type": "END,FAIL",
        "mail_user": "someone@example.org",
        "dependency": "afterany:1",
        "comment": "two words, a 'quote' and a back\\slash",
        "extra": [
          "--nice=10"
        ]
      }
    },
    "h20": {
      "hardware": "H20",
      "actor_gen": 4,
      "slurm": {
        "partition": "h20",
        "account": "physics",
        "qos": "normal",
        "nodes": 2,
        "time": "1-00:00:00",
        "reservation": "for_runs",
        "gpu_form": "gpus-per-node",
        "gpu_type": "h20",
        "mail_type": "END,FAIL",
        "mail_user": "someone@example.org",
        "dependency": "afterany:1",
        "comment": "two words, a 'quote' and a back\\slash",
        "extra": [
          "--nice=10",
          "--wait-all-nodes=1",
          "--gres-flags=enforce-binding"
        ],
        "skip": [
          "--nodelist"
        ]
      }
    },
    "cpu": {
      "hardware": "cpu",
      "environment": 3,
      "reward": 2,
      "slurm": {
        "partition": "cpu",
        "account": "physics",
        "qos": "normal",
        "time": "1-00:00:00",
        "exclusive": "user",
        "licenses": "simulator:2",
        "nodelist": "cpu-1",
        "exclude": "cpu-2",
        "mail_type": "END,FAIL",
        "mail_user": "someone@example.org",
        "dependency": "afterany:1",
        "comment": "two words, a 'quote' and a back\\slash",
        "extra": [
          "--nice=10"
        ],
        "resources": {
          "leader": {
            "cpus": 8,
            "mem_gb": 128.0
          },
          "environment": {
            "cpus": 16
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
