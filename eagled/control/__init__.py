"""The control API over a unix socket: who may call it, what it says, and its clients."""
