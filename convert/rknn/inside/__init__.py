"""What runs in the toolkit's environment, with its numpy 1.26: never imported by the command itself."""
