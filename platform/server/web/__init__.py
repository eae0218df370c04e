"""HTTP in the web processes: servers, middleware, health checks, start and stop."""
