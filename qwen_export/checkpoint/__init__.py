"""Reading checkpoints, and writing synthetic ones."""
