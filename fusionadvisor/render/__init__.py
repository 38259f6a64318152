"""A report to text: terminal, HTML, Markdown. Nothing here looks anywhere but into the report."""
