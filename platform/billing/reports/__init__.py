"""Usage and costs by time bucket and group, as OpenAI's organization API returns them."""
