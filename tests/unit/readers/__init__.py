"""Tests of sources and readers."""
