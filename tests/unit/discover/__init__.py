"""Tests of `eagled discover` without a hub."""
