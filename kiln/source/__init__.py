"""Sources: reading wheels, packages and patches as hostile input, as `Entry` lists."""
