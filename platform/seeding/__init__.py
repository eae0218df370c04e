"""Realistic demo data for the admin: `manage.py seed_demo`.

The recorder of real runs turns scripted turns into rows. The tables are therefore as consistent as after real runs, and
every event log can be replayed.
"""
