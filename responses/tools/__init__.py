"""Interface of hosted tools, approvals of their calls, and the registry that builds the tools of a run."""
