"""What forgets, and how it is repaired."""
