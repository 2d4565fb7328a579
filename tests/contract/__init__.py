"""One suite for every server that speaks the protocol: the embedded engine or a real SGLang."""
