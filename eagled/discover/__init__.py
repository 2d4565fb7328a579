"""Find prompt datasets by category, look at their first rows, and propose a mix.

Light on import: the hub's client and the target's tokenizer are loaded where they are used. What
comes from a hub is hostile text; it is made printable when it becomes a `Facts`.
"""
