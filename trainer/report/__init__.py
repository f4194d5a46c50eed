"""Reports: HTML pages with charts and tables that need no other file."""
