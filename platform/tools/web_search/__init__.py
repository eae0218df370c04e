"""Web search: queries the operator's search engine and reads pages through the guarded HTTP client."""
