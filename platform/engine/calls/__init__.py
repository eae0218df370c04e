"""Tool calls: dispatch, hosted execution, client tools and their items."""
