"""Parts of the admin console that depend on teams: pages, roles, content access, audit and WebSockets."""
