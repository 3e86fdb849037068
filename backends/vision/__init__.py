"""Images to embeddings: decoding, preparing, encoding, for the backends that take images. Knows no prompt."""
