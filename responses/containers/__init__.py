"""Containers: where the code of models runs, as teams know it, and the files in them."""
