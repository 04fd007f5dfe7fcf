"""Locustfiles: thin entry points for the locust command."""
