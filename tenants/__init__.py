"""Who is calling and what they may use: teams, members, keys, upstreams and models, usage ledger, audit."""
