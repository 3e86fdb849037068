"""Images of requests: from data URLs and addresses to the bytes of a file, cheaply checked. Decodes none."""
