"""Forms of answers that clients ask for: what a model is told, and whether it has kept to it."""
