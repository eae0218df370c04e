"""Reference of the API: the OpenAPI document, its coverage, and the differences to the SDK."""
