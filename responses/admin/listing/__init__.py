"""The list of responses: its columns and filters, what stands above it, and what people do from it."""
