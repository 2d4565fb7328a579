"""Generation without a server."""
