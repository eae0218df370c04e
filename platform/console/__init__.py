"""Parts of the admin that are independent of models: charts, Markdown, widgets of lists."""
