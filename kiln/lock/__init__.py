"""Lock files: reading and writing them, and what differs between a lock and today."""
