"""Shards: format, writer, acceptance, scan, verification, reader."""
