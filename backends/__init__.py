"""The worker's side: engines that run models, and the messages they exchange with the server."""
