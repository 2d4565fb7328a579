"""Tests of the text parts."""
