"""What several analyzers share: ranks, device work, launches, steps, names and places."""
