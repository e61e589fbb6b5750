"""The graph of actions: what they are, which are left to do, and doing them."""
