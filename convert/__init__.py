"""Makes hybrid folders from model files, on a PC. Imports backends.hybrid.meta, never the server."""
