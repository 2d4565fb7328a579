"""The capture plugin against real SGLang on the CPU (`make test-sglang`)."""
