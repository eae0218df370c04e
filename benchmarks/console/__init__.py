"""The admin with millions of responses: `population` makes them, `pages` asks for pages, `command` judges."""
