"""The admin API (`/v1/organization`) for admin keys: OpenAI's organization is this platform, its projects are teams."""
