"""Draft vocabulary."""
