"""Reference of the API: the OpenAPI document, what is covered, and how the SDK differs."""
