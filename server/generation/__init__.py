"""The one way of a request: resolve, render, check, queue, run. Knows no route and no HTTP."""
