"""Steps that transform the updates of a round before a rule sees them. None are registered yet."""
