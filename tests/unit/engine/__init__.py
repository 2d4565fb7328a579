"""Unit tests of the embedded server, without HTTP."""
