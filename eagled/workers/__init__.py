"""The work itself: what the daemon and its worker processes do."""
