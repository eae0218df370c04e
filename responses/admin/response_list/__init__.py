"""Response list: filters, columns, histogram, actions, export."""
