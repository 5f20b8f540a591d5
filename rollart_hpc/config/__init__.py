"""The run's configuration: models, loading, entry points, checks before a start."""
