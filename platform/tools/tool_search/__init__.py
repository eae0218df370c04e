"""Tool search: lets the model find tools with deferred loading."""
