"""Vector stores: files are read, cut into passages and embedded by workers; requests search in them."""
