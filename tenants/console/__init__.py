"""The parts of the console that know teams: site, roles, content access, audit, sockets."""
