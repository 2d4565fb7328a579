"""Tests of eagled."""
