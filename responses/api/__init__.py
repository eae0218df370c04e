"""The HTTP side: views and streams that translate between the wire and the services."""
