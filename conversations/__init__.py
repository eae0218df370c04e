"""Items, conversations and files. Independent of how responses are generated."""
