"""Realistic demo data for the admin: `manage.py seed_demo`.

The engine runs the turns of a script, and the recorder of real runs turns its steps into rows. The tables are therefore
as consistent as after real runs, and every event log can be replayed.
"""
