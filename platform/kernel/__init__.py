"""What every app may import and which imports no app: errors, ids, clock, pagination, validation, HTTP, crypto."""
