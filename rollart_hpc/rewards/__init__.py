"""Rewards: serverless calls first, a local pool of processes as their fallback (paper section 6.1)."""
