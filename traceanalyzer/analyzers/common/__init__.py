"""Code shared by several analyzers: ranks, device work, launches, steps, names and places."""
