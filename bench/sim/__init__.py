"""A model of an SGLang-like engine, to judge admission without a GPU."""
