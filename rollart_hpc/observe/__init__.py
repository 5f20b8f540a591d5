"""Metrics, logs and reports."""
