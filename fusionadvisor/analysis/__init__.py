"""A Timeline to quantities: groups, cost, launch behaviour, device figures."""
