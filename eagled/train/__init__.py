"""From a corpus to a trained draft."""
