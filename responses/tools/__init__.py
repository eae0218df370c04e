"""Interface of hosted tools, their approvals, and the registry that assembles the tools of a run."""
