"""HTTP and WebSocket of the API: endpoints, validation, pages of lists, and errors on the wire."""
