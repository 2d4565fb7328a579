"""`eagled bench`: what a draft is worth on a live server, against the same server without it."""
