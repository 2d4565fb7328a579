"""eagled: from prompts and a served target model to a measured EAGLE-3 draft."""

__version__ = "0.1.0"
