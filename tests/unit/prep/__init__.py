"""Tests of the prep parts."""
