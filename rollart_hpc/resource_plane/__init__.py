"""The resource plane: pools, live view, bindings, fallback."""
