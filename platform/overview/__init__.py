"""Console pages that combine what several apps know."""
