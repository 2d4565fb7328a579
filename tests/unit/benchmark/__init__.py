"""Tests of `eagled bench`."""
