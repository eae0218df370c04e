"""Speed of the admin with millions of responses: test data (`population`), requests (`pages`), limits (`command`)."""
