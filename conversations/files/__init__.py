"""Files that clients upload: storage, upload sessions, and the text of documents."""
