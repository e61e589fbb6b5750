"""Getting locked files: where the user's own clients look, and nothing but what the lock says."""
