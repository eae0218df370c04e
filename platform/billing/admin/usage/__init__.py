"""Usage page: query, aggregation, charts, and links from numbers to lists."""
