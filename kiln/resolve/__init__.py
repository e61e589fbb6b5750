"""Resolving: what the lock will say, with a network; building never resolves again."""
