"""Tests of the terminal screen."""
