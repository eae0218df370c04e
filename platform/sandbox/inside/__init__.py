"""What runs inside: copied in one file at a time, so that nothing here imports anything of ours."""
