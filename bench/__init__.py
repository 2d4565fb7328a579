"""Measurements; each prints a ratio and the reference it was measured against."""
