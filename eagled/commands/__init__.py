"""The commands of `eagled`, by what they need: files, the daemon's socket, or the lock."""
