"""How the web processes serve HTTP: servers, middleware, health checks, start and stop."""
