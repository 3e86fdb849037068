"""Worker processes as the server sees them: started, spoken to, watched, and given memory. No queue here."""
