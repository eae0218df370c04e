"""Usage and costs: reports, alerts of budgets, comparison with bills of providers, and their console pages."""
