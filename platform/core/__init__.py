"""Foundations that every app may import and that import no app: errors, ids, pagination, validation, HTTP, crypto."""
