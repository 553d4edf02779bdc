"""Does joining help? A client's own model from the joined one, and what the client has alone."""
