"""File search: the model searches the team's vector stores."""
