"""Containers: the API's own containers and the files in them."""
