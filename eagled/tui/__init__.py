"""The terminal screen of a run; a client of the control socket and nothing else."""

from eagled.tui.launch import run_top

__all__ = ["run_top"]
