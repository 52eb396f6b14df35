"""A guessed password, a price that fell and rose again."""
