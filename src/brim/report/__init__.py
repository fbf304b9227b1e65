"""What a diagnosis looks like: in a terminal, as a page, as JSON."""
