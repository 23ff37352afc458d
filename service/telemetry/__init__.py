"""Metrics, statistics and logs."""
