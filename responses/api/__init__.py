"""HTTP and WebSocket endpoints: views and streams that call the services and convert their results."""
