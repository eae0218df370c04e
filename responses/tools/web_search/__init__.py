"""Web search: a search engine of the operator's, and pages that are read through the guarded client."""
