"""The writer's operations: each a frozen request with one synchronous `apply`.

They run inside the writer's transaction and know nothing of asyncio, so that the power-cut
simulation runs exactly these over another SQLite binding.
"""
