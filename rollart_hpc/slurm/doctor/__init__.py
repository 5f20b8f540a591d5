"""Whether a cluster can run a run as it is configured, before it is submitted."""
