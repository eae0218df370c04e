"""The tool `file_search`: the model searches the team's vector stores."""
