"""The migrations, in the order of their numbers: forward only, never edited after their merge."""
