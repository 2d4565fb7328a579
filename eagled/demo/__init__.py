"""A run from nothing: a small real model and real prompts, fetched once and kept."""
