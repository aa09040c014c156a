"""What people look at: terminal tables, figures, the HTML page."""
