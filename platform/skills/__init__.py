"""Skills: versioned bundles of instructions and files that models read in containers."""
