"""Disaggregated agentic RL training of LLMs as one heterogeneous Slurm job; see ARCHITECTURE.md."""
