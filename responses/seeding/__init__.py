"""Data as runs leave it behind, for looking at the admin: `manage.py seed_demo`.

What agents did is played by the real engine and written down by the real recorder; only the model, the tools and the
clock are a script. So the tables agree as they do after real runs, and every log replays.
"""
