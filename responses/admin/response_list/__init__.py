"""The list of responses: filters, columns, histogram, actions, export."""
