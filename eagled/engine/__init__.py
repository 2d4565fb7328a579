"""The embedded server: the part of SGLang's protocol that eagled uses, for machines without SGLang.

Start it with `eagled engine --model DIR` or `python -m eagled.engine --model DIR`. Nothing in this
package loads torch or transformers at import time except `forward`, `slab` and `sampling`, which
`main.run_engine` imports after it has set the OpenMP wait policy.
"""
