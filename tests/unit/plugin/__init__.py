"""Tests of the capture plugin without SGLang."""
