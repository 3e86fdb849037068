"""The routes. Each one only translates: its own schema to a GenerationRequest, events to its own answer."""
