"""Scripts, styles and templates of the console as they are sent to browsers: few files, cached for long, compressed."""
