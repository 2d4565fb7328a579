"""Canonical messages, rendering by the target's own template, and reading its answers."""
