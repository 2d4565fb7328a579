"""Capture measured on a GPU machine with real SGLang; see `gpu_run.py`."""
