"""The parts of the console that know no team: charts, Markdown, widgets of lists."""
