"""What turns the pages of docs/, the registries and the docstrings into a site."""
