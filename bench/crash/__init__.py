"""Crash harness: the real daemon under load, killed at random, compared by an outsider."""
