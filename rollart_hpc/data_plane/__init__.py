"""The data plane: workers, clusters, routing, environment host, inference and training backends."""
