"""Preparation of datasets in several processes: who does what is in `docs/prep.md`."""
