"""What all routes share of HTTP: bodies, keys, request ids, errors, event streams, limits on connections."""
