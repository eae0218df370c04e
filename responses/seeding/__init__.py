"""Realistic demo data for the admin: `manage.py seed_demo`.

Runs are executed by the real engine and recorded by the real recorder; only the model, the tools and the clock are
scripted. The tables are therefore as consistent as after real runs, and every event log can be replayed.
"""
