"""A package, so that fixtures of this scope end with its last test."""
