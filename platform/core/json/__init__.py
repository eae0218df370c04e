"""JSON documents that are large, that strict parsers refuse, or that PostgreSQL cannot store."""
