"""Django's backend for PostgreSQL, with a pool whose broken connections delay no request."""
