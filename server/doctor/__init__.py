"""What keeps this machine from serving models well, and what mends it: facts, checks, findings."""
