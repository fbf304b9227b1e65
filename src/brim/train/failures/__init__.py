"""What several ranks do about what goes wrong: agree, name the rank, go back, restart."""
