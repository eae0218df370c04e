"""OpenAI's organization API, and the console pages of teams, people, keys and their limits."""
